// Products of matrices of float32 by MKL: each thread computes a part of the rows or columns. Large ones
// by parts in bfloat16, where AMX multiplies these.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "mkl.h"
#include "tiles.h"

// alpha * op(a) op(b) + beta * c: what MatMul, FusedMatMul and Gemm compute. What is added is for
// matrices, without batches.
class MklProduct : public Operator {
 public:
  static constexpr const char* name = "MklProduct";
  static constexpr ElementType inputs[] = {kFloat};
  static constexpr ElementType outputs[] = {kFloat};
  static constexpr bool variadic = true;
  static constexpr const char* library = "mkl";
  static constexpr bool never_fails = true;

  explicit MklProduct(const Info& info)
      : turn_a_(info.flag("transA", false)),
        turn_b_(info.flag("transB", false)),
        adds_(info.inputs() == 3),
        alpha_(static_cast<float>(info.number("alpha", 1))),
        beta_(static_cast<float>(info.number("beta", 1))),
        terms_(terms_of(info)),
        keeps_b_(info.flag("constant", false)) {
    if (info.inputs() < 2 || info.inputs() > 3 || info.outputs() != 1) {
      fail(kInvalidArgument, "a product has two factors and one result");
    }
    Mkl::get();
  }

  void compute(const Context& context) const {
    const Tensor a = context.input(0), b = context.input(1);
    const Sizes of(a.shape, b.shape, turn_a_, turn_b_);
    auto* y = static_cast<float*>(context.output(0, of.shape));
    if (of.batches == 0 || of.m == 0 || of.n == 0) return;
    Addend added;
    if (adds_) added = Addend(context.input(2), of);
    switch (is_by_parts(of) ? terms_ : 0) {
      case 1:
        if (multiply_parts<1>(context, of, a.as<float>(), b.as<float>(), added, y)) return;
        break;
      case 3:
        if (multiply_parts<3>(context, of, a.as<float>(), b.as<float>(), added, y)) return;
        break;
      case 6:
        if (multiply_parts<6>(context, of, a.as<float>(), b.as<float>(), added, y)) return;
        break;
      default:
        break;
    }
    const Parts parts(of, context.threads());
    const int64_t jobs = of.batches * parts.splits;
    context.share(parts.count, [&](int64_t part) {
      for (int64_t job = part * jobs / parts.count; job < (part + 1) * jobs / parts.count; ++job) {
        multiply(of, parts, job, a.as<float>(), b.as<float>(), added, y);
      }
    });
  }

 private:
  // The work that a thread more is worth: multiplications that take longer than to wake it.
  static constexpr double kWorthAThread = 300e3;
  // Rows or columns that a part has a multiple of, since MKL's loops take so many at once.
  static constexpr int64_t kBlock = 16;
  // The multiplications, and the rows, from which parts in bfloat16 are faster: laying out the right
  // factor takes as long as some rows.
  static constexpr double kFewestByParts = 16e6;
  static constexpr int64_t kFewestRows = 256, kFewestRowsOfKept = 64;
  // The bytes of a left factor that are laid out at once, so that they stay in a core's cache.
  static constexpr int64_t kMostLaidOut = 1 << 20;
  // The numbers of 16 bits of a right factor for which a thread keeps memory between calls.
  static constexpr int64_t kMostKept = 1 << 25;

  struct Sizes {
    int64_t m, n, k, batches, step_a, step_b;
    Shape shape, batches_of_a, batches_of_b;  // the last two as the result's, 1 where it repeats

    Sizes(const Shape& a, const Shape& b, bool turn_a, bool turn_b) {
      if (a.size() < 2 || b.size() < 2) fail(kInvalidArgument, "a factor is no matrix");
      const size_t i = a.size() - 2, j = b.size() - 2;
      m = a[i + turn_a], k = a[i + !turn_a], n = b[j + !turn_b];
      if (b[j + turn_b] != k) fail(kInvalidArgument, "the sizes of the factors do not fit");
      step_a = a[i + 1], step_b = b[j + 1];
      const size_t rank = std::max(i, j);
      batches_of_a = padded(a, i, rank), batches_of_b = padded(b, j, rank);
      shape.resize(rank);
      for (size_t d = 0; d < rank; ++d) {
        const int64_t one = batches_of_a[d], other = batches_of_b[d];
        if (one != other && one != 1 && other != 1) {
          fail(kInvalidArgument, "the batches of the factors do not fit");
        }
        shape[d] = one == 1 ? other : one;
      }
      batches = count(shape);
      const bool one_matrix = count(batches_of_b) == 1 && !turn_a;
      shape.push_back(m);
      shape.push_back(n);
      if (one_matrix && batches > 0) {  // the rows of all batches lie behind each other
        m = times(m, batches);
        batches = 1;
      }
      for (int64_t size : {m, n, k, step_a, step_b}) {
        if (size > INT32_MAX) fail(kNotImplemented, "MKL counts rows and columns in 32 bits");
      }
      step_a = std::max<int64_t>(step_a, 1), step_b = std::max<int64_t>(step_b, 1);
    }

    // Where the matrix of a batch begins in a factor.
    static int64_t begin(const Shape& of_factor, const Shape& shape, int64_t batch, int64_t size) {
      int64_t place = 0, step = size;
      for (size_t d = of_factor.size(); d-- > 0;) {
        if (of_factor[d] != 1) place += batch % shape[d] * step;
        batch /= shape[d];
        step *= of_factor[d];
      }
      return place;
    }

   private:
    static Shape padded(const Shape& shape, size_t axes, size_t rank) {
      Shape sizes(rank, 1);
      std::copy_n(shape.begin(), axes, sizes.end() - axes);
      return sizes;
    }
  };

  // How a product is parted between threads.
  struct Parts {
    int64_t splits = 1, step = 0, count = 1;
    bool by_rows;

    Parts(const Sizes& of, int64_t threads) : by_rows(of.m >= of.n) {
      const int64_t along = by_rows ? of.m : of.n;
      step = along;
      const double one = double(of.m) * double(of.n) * double(std::max<int64_t>(of.k, 1));
      count = threads_for(one * double(of.batches), kWorthAThread, threads);
      if (of.batches < count) {
        const int64_t wanted = (count + of.batches - 1) / of.batches;
        step = (along + wanted - 1) / wanted;
        step = (step + kBlock - 1) / kBlock * kBlock;
        splits = (along + step - 1) / step;
      }
      count = std::min(count, of.batches * splits);
    }
  };

  // What is added, read as if it had the sizes of the product.
  struct Addend {
    const float* data = nullptr;
    int64_t row = 0, column = 0;

    Addend() = default;
    Addend(const Tensor& c, const Sizes& of) : data(c.as<float>()) {
      const size_t rank = c.shape.size();
      const int64_t columns = rank > 0 ? c.shape[rank - 1] : 1;
      const int64_t rows = rank > 1 ? c.shape[rank - 2] : 1;
      if (of.shape.size() != 2 || !broadcasts(c.shape, of.shape)) {
        fail(kInvalidArgument, "what is added does not broadcast to the product");
      }
      row = rows == 1 ? 0 : columns, column = columns == 1 ? 0 : 1;
    }

    void copy(float* y, int64_t step, int64_t m0, int64_t m, int64_t n0, int64_t n) const {
      for (int64_t i = 0; i < m; ++i) {
        const float* from = data + (m0 + i) * row + n0 * column;
        float* to = y + i * step;
        if (column == 0) {
          std::fill_n(to, n, *from);
        } else {
          std::copy_n(from, n, to);
        }
      }
    }
  };

  static int terms_of(const Info& info) {
    const int64_t terms = info.integer("terms", 0, 0, 6);
    if (terms != 0 && terms != 1 && terms != 3 && terms != 6) {
      fail(kInvalidArgument, "a product of parts has 1, 3 or 6 terms");
    }
    // by loops for tests alone, which take much longer than MKL
    return tiles::has_tiles() || info.flag("loops", false) ? static_cast<int>(terms) : 0;
  }

  // A right factor as tiles are read.
  struct Right {
    products::Memory<uint16_t> memory;
    const uint16_t* tiles = nullptr;
    tiles::Range range;

    template <int parts>
    void lay(const Context& context, const tiles::Matrix& b, int64_t k, int64_t n) {
      const int64_t count = tiles::tiles_for(n, tiles::kRows);
      const int64_t each = tiles::tiles_for(k, tiles::kDepth) * parts * tiles::kTile;
      uint16_t* to = memory.of(times(count, each));
      std::vector<tiles::Range> found(static_cast<size_t>(count));
      context.each(count, part_of(each), [&](int64_t j) {
        const int64_t columns = std::min(tiles::kRows, n - j * tiles::kRows);
        tiles::lay_right<parts>(b, j * tiles::kRows, columns, k, to + j * each, found[static_cast<size_t>(j)]);
      });
      range = {};
      for (const tiles::Range& one : found) range.join(one);
      tiles = to;
    }
  };

  bool is_by_parts(const Sizes& of) const {
    return of.batches == 1 && of.m >= (keeps_b_ ? kFewestRowsOfKept : kFewestRows) &&
           double(of.m) * double(of.n) * double(of.k) >= kFewestByParts;
  }

  // Whether the factors are ones that parts can multiply; else nothing in y means anything.
  template <int terms>
  bool multiply_parts(const Context& context, const Sizes& of, const float* a, const float* b,
                      const Addend& added, float* y) const {
    constexpr int parts = tiles::parts_of(terms);
    static thread_local Right of_this_call;
    struct Shrunk {
      Right& right;
      ~Shrunk() { right.memory.shrink(kMostKept); }
    } const shrunk{of_this_call};
    Right& right = keeps_b_ ? kept_ : of_this_call;
    if (!keeps_b_) {
      right.lay<parts>(context, {b, of.step_b, turn_b_}, of.k, of.n);
    } else {
      std::call_once(is_kept_, [&] { right.lay<parts>(context, {b, of.step_b, turn_b_}, of.k, of.n); });
    }
    if (!tiles::Range::fits({}, right.range)) return false;
    const int64_t deep = tiles::tiles_for(of.k, tiles::kDepth), each = deep * parts * tiles::kTile;
    const int64_t threads = std::max<int64_t>(context.threads(), 1);
    // Rows of a job, as many jobs for each thread; groups of columns where there are too few rows.
    const int64_t blocks = tiles::tiles_for(of.m, tiles::kBlock);
    const int64_t most = std::max<int64_t>(kMostLaidOut / (2 * each * int64_t{sizeof(uint16_t)}), 1);
    const int64_t rounds = tiles::tiles_for(tiles::tiles_for(blocks, most), threads);
    const int64_t rows = tiles::tiles_for(blocks, rounds * threads);
    const int64_t row_jobs = tiles::tiles_for(blocks, rows), across = tiles::tiles_for(of.n, tiles::kBlock);
    const int64_t groups = std::min(across, tiles::tiles_for(threads, row_jobs));
    std::atomic<bool> fits{true};
    context.share(row_jobs * groups, [&](int64_t job) {
      const int64_t first = job / groups * rows, last = std::min(first + rows, blocks), group = job % groups;
      const bool done = multiply_rows<terms>(of, {a, of.step_a, turn_a_}, right, first, last,
                                             group * across / groups, (group + 1) * across / groups, added, y);
      if (!done) fits = false;
    });
    return fits;
  }

  // Blocks of rows by blocks of columns of a product.
  template <int terms>
  bool multiply_rows(const Sizes& of, const tiles::Matrix& a, const Right& right, int64_t first, int64_t last,
                     int64_t begin, int64_t end, const Addend& added, float* y) const {
    using namespace tiles;
    constexpr int parts = parts_of(terms);
    static thread_local products::Memory<uint16_t> memory;
    const int64_t deep = tiles_for(of.k, kDepth), each = deep * parts * kTile;
    const int64_t rows = tiles_for(of.m, kRows), columns = tiles_for(of.n, kRows);
    uint16_t* left = memory.of((last - first) * 2 * each);
    Range range;
    for (int64_t i = 2 * first; i < std::min(2 * last, rows); ++i) {
      lay_left<parts>(a, i * kRows, std::min(kRows, of.m - i * kRows), of.k, left + (i - 2 * first) * each, range);
    }
    if (!Range::fits(range, right.range)) return false;
    alignas(64) Block sums;
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t i = first; i < last; ++i) {
        const uint16_t *upper = left + (i - first) * 2 * each, *near = right.tiles + 2 * j * each;
        const Factors factors{{upper, 2 * i + 1 < rows ? upper + each : upper},
                              {near, 2 * j + 1 < columns ? near + each : near}};
        multiply_all<terms>(factors, deep, sums);
        write(of, sums, i * tiles::kBlock, j * tiles::kBlock, added, y);
      }
    }
    return true;
  }

  void write(const Sizes& of, const float* sums, int64_t i, int64_t j, const Addend& added, float* y) const {
    const int64_t rows = std::min(tiles::kBlock, of.m - i), columns = std::min(tiles::kBlock, of.n - j);
    for (int64_t r = 0; r < rows; ++r, sums += tiles::kBlock) {
      float* to = y + (i + r) * of.n + j;
      if (adds_ && beta_ != 0) {
        const float* from = added.data + (i + r) * added.row + j * added.column;
        for (int64_t c = 0; c < columns; ++c) to[c] = alpha_ * sums[c] + beta_ * from[c * added.column];
      } else {
        for (int64_t c = 0; c < columns; ++c) to[c] = alpha_ * sums[c];
      }
    }
  }

  void multiply(const Sizes& of, const Parts& parts, int64_t job, const float* a, const float* b,
                const Addend& added, float* y) const {
    const int64_t batch = job / parts.splits, first = job % parts.splits * parts.step;
    Mkl::Matrix<float> left{a, of.step_a, turn_a_}, right{b, of.step_b, turn_b_};
    if (of.batches > 1) {
      left.data += Sizes::begin(of.batches_of_a, of.shape, batch, of.m * of.k);
      right.data += Sizes::begin(of.batches_of_b, of.shape, batch, of.k * of.n);
      y += batch * of.m * of.n;
    }
    int64_t m = of.m, n = of.n, m0 = 0, n0 = 0;
    if (parts.by_rows) {
      m0 = first, m = std::min(parts.step, of.m - first);
      left.data = left.row(first);
    } else {
      n0 = first, n = std::min(parts.step, of.n - first);
      right.data = right.column(first);
    }
    y += m0 * of.n + n0;
    float beta = 0;
    if (adds_ && beta_ != 0) {
      added.copy(y, of.n, m0, m, n0, n);
      beta = beta_;
    }
    Mkl::get().multiply(m, n, of.k, alpha_, left, right, beta, y, of.n);
  }

  bool turn_a_, turn_b_, adds_;
  float alpha_, beta_;
  int terms_;     // products of parts; 0 where MKL multiplies in any case
  bool keeps_b_;  // the right factor is the same at each call
  mutable Right kept_;
  mutable std::once_flag is_kept_;
};

static const Operators<MklProduct> mkl_products_operators;
