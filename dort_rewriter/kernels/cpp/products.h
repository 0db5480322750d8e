// Products of two matrices of floats in the calling thread, of tens to hundreds of rows and columns.
//
// NOTE: those of libraries take long to start, lay out both factors again at each call, and MKL's are
// slow on processors of other makers.
#pragma once

#include <algorithm>
#include <memory>

#include "turn.h"
#include "vectors.h"

namespace products {

// What is multiplied at once: so many rows and vectors of columns fill the registers.
constexpr int64_t kRows = kWidest == 16 ? 8 : 4, kVectors = 3;

constexpr int64_t padded(int64_t columns) { return (columns + kWidest - 1) / kWidest * kWidest; }

// Memory whose lines are those of caches, and which is not written before it is used.
template <typename T = float>
class Memory {
 public:
  T* of(int64_t n) {
    if (n > size_) {
      data_.reset(new T[static_cast<size_t>(n + kLine)]);
      size_ = n;
    }
    const auto past = reinterpret_cast<uintptr_t>(data_.get()) / sizeof(T) % kLine;
    return data_.get() + (kLine - past) % kLine;
  }

  // Give it back if it is large.
  void shrink(int64_t most) {
    if (size_ <= most) return;
    data_.reset();
    size_ = 0;
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(T);
  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
};

// A factor: numbers that are `row` and `column` apart.
struct Matrix {
  const float* data;
  int64_t row, column;

  Matrix from_row(int64_t i) const { return {data + i * row, row, column}; }
  Matrix turned() const { return {data, column, row}; }
};

// The right factor, as it is read: some vectors of columns, row after row, then the next ones.
class Right {
 public:
  // Lay out k by n numbers, which lie in rows, or in columns.
  ONCE void take(Matrix from, int64_t k, int64_t n) {
    k_ = k, n_ = n;
    data_ = memory_.of(k * padded(n));
    for (int64_t begin = 0; begin < n;) {
      const int64_t vectors = vectors_from(begin), lanes = vectors * kWidest;
      float* to = data_ + begin * k;
      const int64_t given = std::min(lanes, n - begin);
      const Matrix some{from.data + begin * from.column, from.row, from.column};
      from.column == 1 ? copy_rows(some, given, to, lanes) : copy_columns(some, given, to, lanes);
      begin += lanes;
    }
  }

  int64_t columns() const { return n_; }

  // How many vectors of columns are read at once, from a column on.
  int64_t vectors_from(int64_t begin) const {
    const int64_t left = (padded(n_) - begin) / kWidest;
    return left == 4 ? 2 : std::min(left, kVectors);  // a last one alone would wait for its factors
  }

  const float* at(int64_t column) const { return data_ + column * k_; }

 private:
  void copy_rows(Matrix from, int64_t given, float* to, int64_t lanes) const {
    for (int64_t i = 0; i < k_; ++i, to += lanes) {
      std::copy_n(from.data + i * from.row, given, to);
      std::fill(to + given, to + lanes, 0.0f);
    }
  }

  void copy_columns(Matrix from, int64_t given, float* to, int64_t lanes) const {
    const int64_t whole = from.row == 1 ? k_ / 8 * 8 : 0;
    int64_t j = 0;
    for (; j + 8 <= given; j += 8) {
      const float* columns = from.data + j * from.column;
      for (int64_t i = 0; i < whole; i += 8) {
        turn(columns + i, from.column, to + i * lanes + j, lanes);
      }
      copy(from, whole, j, j + 8, to, lanes);
    }
    copy(from, 0, j, given, to, lanes);
    for (int64_t i = 0; i < k_; ++i) std::fill(to + i * lanes + given, to + (i + 1) * lanes, 0.0f);
  }

  void copy(Matrix from, int64_t first, int64_t j, int64_t end, float* to, int64_t lanes) const {
    for (int64_t i = first; i < k_; ++i) {
      for (int64_t c = j; c < end; ++c) to[i * lanes + c] = from.data[i * from.row + c * from.column];
    }
  }

  Memory<> memory_;
  float* data_ = nullptr;
  int64_t k_ = 0, n_ = 0;
};

// Some rows of a product, for some vectors of columns. What is there may be added to.
template <int64_t rows, int64_t vectors>
ONCE void multiply_some(Matrix a, const float* b, int64_t k, float alpha, bool adds, float* y, int64_t step) {
  WidestFloats sums[rows][vectors];
#pragma GCC unroll 8
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 3
    for (int64_t v = 0; v < vectors; ++v) sums[r][v] = WidestFloats{};
  }
  const float* from = a.data;
  for (int64_t i = 0; i < k; ++i, from += a.column, b += vectors * kWidest) {
    WidestFloats given[vectors];
#pragma GCC unroll 3
    for (int64_t v = 0; v < vectors; ++v) given[v] = load<WidestFloats>(b + v * kWidest);
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
      const WidestFloats factor = from[r * a.row] - WidestFloats{};
#pragma GCC unroll 3
      for (int64_t v = 0; v < vectors; ++v) sums[r][v] = add_product(sums[r][v], factor, given[v]);
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 3
    for (int64_t v = 0; v < vectors; ++v) {
      float* to = y + r * step + v * kWidest;
      WidestFloats made = sums[r][v] * alpha;
      if (adds) made += load<WidestFloats>(to);
      std::memcpy(to, &made, sizeof(made));
    }
  }
}

template <int64_t vectors>
void multiply_rows(int64_t m, Matrix a, const float* b, int64_t k, float alpha, bool adds, float* y,
                   int64_t step) {
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows) {
    multiply_some<kRows, vectors>(a.from_row(i), b, k, alpha, adds, y + i * step, step);
  }
  if (i + 4 <= m) {
    multiply_some<4, vectors>(a.from_row(i), b, k, alpha, adds, y + i * step, step);
    i += 4;
  }
  if (i + 2 <= m) {
    multiply_some<2, vectors>(a.from_row(i), b, k, alpha, adds, y + i * step, step);
    i += 2;
  }
  if (i < m) multiply_some<1, vectors>(a.from_row(i), b, k, alpha, adds, y + i * step, step);
}

// What is read of a right factor: rows from one on, and the columns between those at which vectors
// begin that are read at once.
struct Part {
  const Right& b;
  int64_t first = 0, begin = 0, end = INT64_MAX;
};

// y = alpha * a b, or what is there and that, of m by k and k by n numbers. Rows of y are as long as
// `padded` says at least.
inline void multiply(int64_t m, int64_t k, float alpha, Matrix a, const Part& part, bool adds, float* y,
                     int64_t step) {
  const Right& b = part.b;
  for (int64_t j = part.begin; j < std::min(part.end, b.columns());) {
    const int64_t vectors = b.vectors_from(j), lanes = vectors * kWidest;
    const float* from = b.at(j) + part.first * lanes;
    float* to = y + j - part.begin;
    switch (vectors) {
      case 1:
        multiply_rows<1>(m, a, from, k, alpha, adds, to, step);
        break;
      case 2:
        multiply_rows<2>(m, a, from, k, alpha, adds, to, step);
        break;
      default:
        multiply_rows<3>(m, a, from, k, alpha, adds, to, step);
    }
    j += lanes;
  }
}

}  // namespace products
