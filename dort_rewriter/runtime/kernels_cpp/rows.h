// Sums over leading and trailing axes, and what is made of the sums of rows: layer norms, softmax.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "functions.h"
#include "kernel.h"
#include "sums.h"

// Sums or means over axes that come first or last: what is kept lies in between.
class Sum {
 public:
  static constexpr const char* name = "Sum";
  static constexpr ElementType inputs[] = {kFloat};
  static constexpr ElementType outputs[] = {kFloat};
  static constexpr bool variadic = false;
  static constexpr size_t in_place = 0;

  // `leading` and `trailing` are how many axes are summed at each end.
  explicit Sum(const Info& info)
      : leading_(info.integer("leading", 0, 0, kMostAxes)),
        trailing_(info.integer("trailing", 0, 0, kMostAxes)),
        keep_(info.flag("keepdims", true)),
        mean_(info.flag("mean", false)) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0);
    auto rank = static_cast<int64_t>(x.shape.size());
    if (leading_ + trailing_ > rank) fail(kInvalidArgument, "Sum over more axes than there are");
    Shape shape;
    for (int64_t d = 0; d < rank; ++d) {
      bool kept = d >= leading_ && d < rank - trailing_;
      if (kept || keep_) shape.push_back(kept ? x.shape[d] : 1);
    }
    const int64_t* sizes = x.shape.begin();
    int64_t outer = count(sizes, sizes + leading_);
    int64_t kept = count(sizes + leading_, sizes + rank - trailing_);
    int64_t inner = count(sizes + rank - trailing_, sizes + rank);
    float* y = static_cast<float*>(context.output(0, shape));
    if (outer * inner == 0) outer = 0;  // nothing to go through, however many times
    double scale = mean_ ? 1.0 / static_cast<double>(outer * inner) : 1.0;
    const float* from = x.as<float>();
    if (kept == 0) return;
    if (inner == 1) {
      columns(context, from, outer, kept, scale, y);
      return;
    }
    int64_t part = std::max<int64_t>(1, 16384 / std::max<int64_t>(outer * inner, 1));
    context.parallel(kept, part, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        double total = 0;
        for (int64_t o = 0; o < outer; ++o) {
          const float* row = from + (o * kept + k) * inner;
          total += sum_of(inner, [=](int64_t i) { return row[i]; });
        }
        y[k] = static_cast<float>(total * scale);
      }
    });
  }

 private:
  static constexpr int64_t kColumns = 64, kRows = 128;

  static void columns(const Context& context, const float* from, int64_t rows, int64_t width,
                      double scale, float* y) {
    int64_t blocks = (width + kColumns - 1) / kColumns;
    int64_t part = std::max<int64_t>(1, 16384 / std::max<int64_t>(rows * kColumns, 1));
    context.parallel(blocks, part, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        int64_t first = b * kColumns, n = std::min(kColumns, width - first);
        double total[kColumns] = {};
        for (int64_t row = 0; row < rows; row += kRows) {
          float sums[kColumns] = {};
          const float* at = from + row * width + first;
          int64_t high = std::min(kRows, rows - row);
          for (int64_t r = 0; r < high; ++r, at += width) {
            if (n == kColumns) {  // a number that compilers know
              for (int64_t k = 0; k < kColumns; ++k) sums[k] += at[k];
            } else {
              for (int64_t k = 0; k < n; ++k) sums[k] += at[k];
            }
          }
          for (int64_t k = 0; k < n; ++k) total[k] += sums[k];
        }
        for (int64_t k = 0; k < n; ++k) y[first + k] = static_cast<float>(total[k] * scale);
      }
    });
  }

  int64_t leading_, trailing_;
  bool keep_, mean_;
};

// A tensor as rows of its last axes.
struct Rows {
  int64_t rows, width;

  Rows(const Shape& shape, int64_t axes) {
    auto rank = static_cast<int64_t>(shape.size());
    if (axes < 1 || axes > rank) fail(kInvalidArgument, "rows of more axes than there are");
    rows = count(shape.begin(), shape.end() - axes);
    width = count(shape.end() - axes, shape.end());
  }

  int64_t part() const { return std::max<int64_t>(1, 16384 / std::max<int64_t>(width, 1)); }

  void expect(const Tensor& tensor, int64_t size) const {
    if (tensor.size() != size) fail(kInvalidArgument, "an input of other rows");
  }
};

class LayerNorm {
 public:
  static constexpr const char* name = "LayerNorm";
  // x, weight, bias; results: y, mean, reciprocal deviation
  static constexpr ElementType inputs[] = {kFloat, kFloat, kFloat};
  static constexpr ElementType outputs[] = {kFloat, kFloat, kFloat};
  static constexpr bool variadic = false;
  static constexpr size_t in_place = 0;

  explicit LayerNorm(const Info& info)
      : axes_(info.integer("axes", 1, 1, kMostAxes)), epsilon_(info.number("epsilon")) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0), weight = context.input(1), bias = context.input(2);
    Rows by(x.shape, axes_);
    by.expect(weight, by.width);
    by.expect(bias, by.width);
    Shape each = x.shape;
    for (int64_t d = 0; d < axes_; ++d) each[each.size() - 1 - d] = 1;
    float* y = static_cast<float*>(context.output(0, x.shape));
    float* means = static_cast<float*>(context.output(1, each));
    float* rstds = static_cast<float*>(context.output(2, each));
    const float *w = weight.as<float>(), *shift = bias.as<float>();
    context.parallel(by.rows, by.part(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* from = x.as<float>() + r * by.width;
        float* to = y + r * by.width;
        double total = sum_of(by.width, [=](int64_t i) { return from[i]; });
        const auto mean = static_cast<float>(total / by.width);
        double squares = sum_of(by.width, [=](int64_t i) {
          float d = from[i] - mean;
          return d * d;
        });
        const auto rstd = static_cast<float>(1 / std::sqrt(squares / by.width + epsilon_));
        means[r] = mean;
        rstds[r] = rstd;
        for (int64_t i = 0; i < by.width; ++i) to[i] = (from[i] - mean) * rstd * w[i] + shift[i];
      }
    });
  }

 private:
  int64_t axes_;
  double epsilon_;
};

class LayerNormGrad {
 public:
  static constexpr const char* name = "LayerNormGrad";
  // gradient, x, mean, reciprocal deviation, weight; results: gradients of weight, bias and x
  static constexpr ElementType inputs[] = {kFloat, kFloat, kFloat, kFloat, kFloat};
  static constexpr ElementType outputs[] = {kFloat, kFloat, kFloat};
  static constexpr bool variadic = false, last_optional = true;
  static constexpr size_t in_place = 0;

  explicit LayerNormGrad(const Info& info) : axes_(info.integer("axes", 1, 1, kMostAxes)) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), x = context.input(1), mean = context.input(2);
    Tensor rstd = context.input(3), weight = context.input(4);
    Rows by(x.shape, axes_);
    if (gradient.shape != x.shape) fail(kInvalidArgument, "the gradient has another shape than x");
    by.expect(mean, by.rows);
    by.expect(rstd, by.rows);
    by.expect(weight, by.width);
    Shape inner(x.shape.end() - axes_, x.shape.end());
    float* of_weight = static_cast<float*>(context.output(0, inner));
    float* of_bias = static_cast<float*>(context.output(1, inner));
    float* of_x = static_cast<float*>(context.optional_output(2, x.shape));
    if (by.width == 0) return;
    // Sums over rows are made part by part, so that they do not depend on the number of threads.
    int64_t parts = (by.rows + kRows - 1) / kRows;
    std::vector<float> sums(parts * 2 * by.width);
    context.parallel(parts, std::max<int64_t>(1, by.part() / kRows), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin * kRows; r < std::min(end * kRows, by.rows); ++r) {
        float* part = sums.data() + r / kRows * 2 * by.width;
        int64_t at = r * by.width;
        row(gradient.as<float>() + at, x.as<float>() + at, weight.as<float>(), by.width,
            mean.as<float>()[r], rstd.as<float>()[r], part, part + by.width,
            of_x == nullptr ? nullptr : of_x + at);
      }
    });
    for (int64_t i = 0; i < by.width; ++i) {
      double weights = 0, biases = 0;
      for (int64_t p = 0; p < parts; ++p) {
        weights += sums[(2 * p) * by.width + i];
        biases += sums[(2 * p + 1) * by.width + i];
      }
      of_weight[i] = static_cast<float>(weights);
      of_bias[i] = static_cast<float>(biases);
    }
  }

 private:
  static constexpr int64_t kRows = 64;

  static void row(const float* g, const float* x, const float* w, int64_t n, float mean, float rstd,
                  float* weights, float* biases, float* to) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      weights[i] += g[i] * ((x[i] - mean) * rstd);
      biases[i] += g[i];
    }
    if (to == nullptr) return;
    Two total = sums_of(n, [=](int64_t i, float& a, float& b) {
      float scaled = g[i] * w[i];
      a += scaled;
      b += scaled * (x[i] - mean);
    });
    const auto average = static_cast<float>(total.a / n);
    const auto slope = static_cast<float>(total.b * rstd * rstd / n);
    for (int64_t i = 0; i < n; ++i) {
      to[i] = (g[i] * w[i] - average - (x[i] - mean) * slope) * rstd;
    }
  }

  int64_t axes_;
};

// The gradient of a norm by the root of the mean square, along the last axis.
class RmsNormGrad {
 public:
  static constexpr const char* name = "RmsNormGrad";
  // gradient, x, reciprocal root, weight; result: the gradient of x
  static constexpr ElementType inputs[] = {kFloat, kFloat, kFloat, kFloat};
  static constexpr ElementType outputs[] = {kFloat};
  static constexpr bool variadic = false;
  static constexpr size_t in_place = 0;

  explicit RmsNormGrad(const Info&) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), x = context.input(1), root = context.input(2);
    Tensor weight = context.input(3);
    Rows by(x.shape, 1);
    if (gradient.shape != x.shape) fail(kInvalidArgument, "the gradient has another shape than x");
    by.expect(root, by.rows);
    by.expect(weight, by.width);
    const float *all = gradient.as<float>(), *from = x.as<float>(), *w = weight.as<float>();
    const float* roots = root.as<float>();
    float* output = static_cast<float*>(context.output(0, x.shape));
    int64_t n = by.width;
    context.parallel(by.rows, by.part(), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float *g = all + r * n, *values = from + r * n;
        float* to = output + r * n;
        const float scale = roots[r];
        double total = sum_of(n, [=](int64_t i) { return g[i] * w[i] * values[i]; });
        const auto slope = static_cast<float>(total * scale * scale * scale / n);
        for (int64_t i = 0; i < n; ++i) to[i] = g[i] * w[i] * scale - values[i] * slope;
      }
    });
  }
};

// The gradient of a softmax, or of its logarithm, along the last axis.
class SoftmaxGrad {
 public:
  static constexpr const char* name = "SoftmaxGrad";
  static constexpr ElementType inputs[] = {kFloat, kFloat};  // gradient, result
  static constexpr ElementType outputs[] = {kFloat};
  static constexpr bool variadic = false;
  static constexpr size_t in_place = 0;

  explicit SoftmaxGrad(const Info& info) : log_(info.flag("log", false)) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), result = context.input(1);
    if (gradient.shape != result.shape) fail(kInvalidArgument, "the gradient has another shape");
    Rows by(result.shape, 1);
    float* output = static_cast<float*>(context.output(0, result.shape));
    if (by.width == 0) return;
    context.parallel(by.rows, by.part(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* g = gradient.as<float>() + r * by.width;
        const float* y = result.as<float>() + r * by.width;
        float* to = output + r * by.width;
        if (log_) {
          const auto total =
              static_cast<float>(sum_of(by.width, [=](int64_t i) { return g[i]; }));
          for (int64_t i = 0; i < by.width; ++i) to[i] = g[i] - exponential(y[i]) * total;
        } else {
          const auto total =
              static_cast<float>(sum_of(by.width, [=](int64_t i) { return g[i] * y[i]; }));
          for (int64_t i = 0; i < by.width; ++i) to[i] = (g[i] - total) * y[i];
        }
      }
    });
  }

 private:
  bool log_;
};
