// MKL, the library that torch multiplies by on some processors.
//
// NOTE: MKL's own threads would spin on the cores that those of the session need. Each thread of the
// session calls it for a part of the work instead, and MKL works in that thread alone.
#pragma once

#include <cstdint>

#include "torch_library.h"

class Mkl {
 public:
  static const Mkl& get() {
    static const Mkl found;  // tried again by the next kernel if it throws
    return found;
  }

  // Refuse a kernel where MKL does not multiply such factors.
  template <typename T>
  static void check() {
    get().product_of(static_cast<const T*>(nullptr));
  }

  // A matrix in its layout, by rows that are `step` apart, or read the other way round.
  template <typename T>
  struct Matrix {
    const T* data;
    int64_t step;
    bool turned;

    // Where the rows and the columns of what is read begin.
    const T* row(int64_t i) const { return data + (turned ? i : i * step); }
    const T* column(int64_t i) const { return data + (turned ? i * step : i); }
  };

  // y = alpha * a b + beta * y, of m by k and k by n numbers, in the calling thread alone.
  template <typename T>
  void multiply(int64_t m, int64_t n, int64_t k, float alpha, Matrix<T> a, Matrix<T> b, float beta,
                float* y, int64_t step) const {
    const int before = threads_.call(1);
    // MKL counts by columns: the product of b and a, turned, is that of a and b by rows.
    const int rows = narrow(m), columns = narrow(n), inner = narrow(k), out = narrow(step);
    const int of_a = narrow(a.step), of_b = narrow(b.step);
    product_of(a.data).call(b.turned ? "T" : "N", a.turned ? "T" : "N", &columns, &rows, &inner,
                            &alpha, b.data, &of_b, a.data, &of_a, &beta, y, &out);
    threads_.call(before);
  }

 private:
  template <typename T>
  using Product = torch_library::Function<void(const char*, const char*, const int*, const int*,
                                               const int*, const float*, const T*, const int*,
                                               const T*, const int*, const float*, float*,
                                               const int*)>;

  const Product<float>& product_of(const float*) const { return floats_; }
  static const Product<Bfloat>& product_of(const Bfloat*) {
    static const Product<Bfloat> found{"gemm_bf16bf16f32_"};
    return found;
  }

  static int narrow(int64_t size) { return static_cast<int>(size); }

  Product<float> floats_{"sgemm_"};
  torch_library::Function<int(int)> threads_{"MKL_Set_Num_Threads_Local"};
};
