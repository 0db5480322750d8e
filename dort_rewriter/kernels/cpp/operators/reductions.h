// Sums and means over leading and trailing axes, of any type that is computed in float.
#pragma once

#include <algorithm>
#include <vector>

#include "floats.h"
#include "kernel.h"
#include "sums.h"

// Sums or means over axes that come first or last, of numbers or their squares: what is kept lies
// in between, or before axes that are followed by others.
class Sum : public Operator {
 public:
  static constexpr const char* name = "Sum";
  static constexpr ElementType inputs[] = {kFloating};
  static constexpr ElementType outputs[] = {kFloating};
  static constexpr bool never_fails = true;

  // `leading` and `trailing` are how many axes are summed at each end; the leading ones come after
  // `before` others.
  explicit Sum(const Info& info)
      : before_(info.integer("before", 0, 0, kMostAxes)),
        leading_(info.integer("leading", 0, 0, kMostAxes)),
        trailing_(info.integer("trailing", 0, 0, kMostAxes)),
        keep_(info.flag("keepdims", true)),
        mean_(info.flag("mean", false)),
        square_(info.flag("square", false)) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0);
    auto rank = static_cast<int64_t>(x.shape.size());
    if (before_ + leading_ + trailing_ > rank || (before_ > 0 && trailing_ > 0)) {
      fail(kInvalidArgument, "Sum over more axes than there are");
    }
    Shape shape;
    for (int64_t d = 0; d < rank; ++d) {
      bool kept = d < before_ || (d >= before_ + leading_ && d < rank - trailing_);
      if (kept || keep_) shape.push_back(kept ? x.shape[d] : 1);
    }
    const int64_t* sizes = x.shape.begin();
    int64_t batch = count(sizes, sizes + before_);
    sizes += before_;
    rank -= before_;
    int64_t outer = count(sizes, sizes + leading_);
    int64_t kept = count(sizes + leading_, sizes + rank - trailing_);
    int64_t inner = count(sizes + rank - trailing_, sizes + rank);
    Written y(context, 0, shape);
    if (outer * inner == 0) outer = 0;  // nothing to go through, however many times
    double divisor = mean_ ? static_cast<double>(outer * inner) : 1.0;
    Floats from(x);
    if (batch * kept == 0) return;
    if (inner == 1) {
      if (square_) {
        columns<float>(context, from, batch, outer, kept, divisor, y, [](float v) { return v * v; });
      } else if (mean_) {
        columns<double>(context, from, batch, outer, kept, divisor, y, [](float v) { return v; });
      } else {
        columns<float>(context, from, batch, outer, kept, divisor, y, [](float v) { return v; });
      }
      return;
    }
    context.each(kept, part_of(outer * inner), [&](int64_t k) {
      double total = 0;
      for (int64_t o = 0; o < outer; ++o) total += sum_row(from, (o * kept + k) * inner, inner);
      y.put(k, static_cast<float>(total / divisor));
    });
  }

 private:
  static constexpr int64_t kColumns = 64, kRows = 128;

  // In chunks: a row may be long.
  double sum_row(const Floats& from, int64_t at, int64_t n) const {
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += kChunk) {
      int64_t length = std::min(kChunk, n - begin);
      const float* row = from.at(at + begin, length, 0);
      if (square_) {
        total += sum_of(length, [=](int64_t i) { return row[i] * row[i]; });
      } else if (mean_) {
        total += sum_of<double>(length, [=](int64_t i) { return row[i]; });
      } else {
        total += sum_of(length, [=](int64_t i) { return row[i]; });
      }
    }
    return total;
  }

  // The sums of term(number), added up in lanes.
  template <typename Lane, typename F>
  static void columns(const Context& context, const Floats& from, int64_t batch, int64_t rows,
                      int64_t width, double divisor, const Written& y, F&& term) {
    int64_t blocks = (width + kColumns - 1) / kColumns;
    context.each(batch * blocks, part_of(rows * kColumns), [&](int64_t b) {
      int64_t above = b / blocks * rows, first = b % blocks * kColumns;
      int64_t n = std::min(kColumns, width - first);
      double total[kColumns] = {};
      for (int64_t row = 0; row < rows; row += kRows) {
        Lane sums[kColumns] = {};
        int64_t high = std::min(kRows, rows - row);
        for (int64_t r = 0; r < high; ++r) {
          const float* at = from.at((above + row + r) * width + first, n, 0);
          if (n == kColumns) {  // a number that compilers know
            for (int64_t k = 0; k < kColumns; ++k) sums[k] += term(at[k]);
          } else {
            for (int64_t k = 0; k < n; ++k) sums[k] += term(at[k]);
          }
        }
        for (int64_t k = 0; k < n; ++k) total[k] += sums[k];
      }
      y.put(b / blocks * width + first, n, 0, [&](float* to) {
        for (int64_t k = 0; k < n; ++k) to[k] = static_cast<float>(total[k] / divisor);
      });
    });
  }

  int64_t before_, leading_, trailing_;
  bool keep_, mean_, square_;
};

static const Operators<Sum> reductions_operators;
