// Products of matrices of float32 by MKL: each thread computes a part of the rows or columns.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mkl.h"

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
        beta_(static_cast<float>(info.number("beta", 1))) {
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
};

static const Operators<MklProduct> mkl_products_operators;
