// Tensors as kernels see them, what is thrown when they do not fit, and short vectors.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "compiler.h"
#include "ort_api.h"

inline Api api;

// An error of ONNX Runtime, carried through C++ until a function that returns it.
struct StatusError {
  OrtStatus* status;
};

inline void check(OrtStatus* status) {
  if (status != nullptr) throw StatusError{status};
}

[[noreturn]] ONCE inline void fail(ErrorCode code, const std::string& message) {
  throw StatusError{api.CreateStatus(code, message.c_str())};
}

template <typename F>
OrtStatus* guarded(F&& work) {
  try {
    work();
    return nullptr;
  } catch (const StatusError& error) {
    return error.status;
  } catch (const std::exception& error) {
    return api.CreateStatus(kFail, error.what());
  }
}

using Integers = std::vector<int64_t>;

// A vector without an allocation: a call of a small kernel takes less than one.
template <typename T, size_t capacity>
class Few {
 public:
  Few() = default;
  explicit Few(size_t n, T value = T()) {
    resize(n);
    std::fill_n(values_, n, value);
  }
  Few(std::initializer_list<T> values) : Few(values.begin(), values.end()) {}
  Few(const T* begin, const T* end) {
    resize(static_cast<size_t>(end - begin));
    std::copy(begin, end, values_);
  }
  void resize(size_t n) {
    if (n > capacity) fail(kNotImplemented, "too many inputs, results or dimensions");
    size_ = n;
  }
  void push_back(const T& value) {
    resize(size_ + 1);
    values_[size_ - 1] = value;
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return values_[i]; }
  const T& operator[](size_t i) const { return values_[i]; }
  T* data() { return values_; }
  const T* data() const { return values_; }
  T* begin() { return values_; }
  T* end() { return values_ + size_; }
  const T* begin() const { return values_; }
  const T* end() const { return values_ + size_; }
  T& back() { return values_[size_ - 1]; }
  const T& back() const { return values_[size_ - 1]; }
  bool operator==(const Few& other) const {
    return size_ == other.size_ && std::equal(begin(), end(), other.begin());
  }
  bool operator!=(const Few& other) const { return !(*this == other); }

 private:
  size_t size_ = 0;
  T values_[capacity];  // not zeroed: that would take longer than many kernels
};

constexpr size_t kMostAxes = 12;
using Shape = Few<int64_t, kMostAxes>;

// A product of numbers that are not negative.
inline int64_t times(int64_t a, int64_t b) {
  if (b != 0 && a > INT64_MAX / b) fail(kInvalidArgument, "sizes are too large");
  return a * b;
}

// Sizes whose product, and any part of it, fits in 64 bits, also in bytes.
ONCE inline void check_sizes(const Shape& shape) {
  constexpr int64_t kLargest = int64_t{1} << 59;
  int64_t total = 1;
  for (int64_t size : shape) {
    if (size < 0) fail(kInvalidArgument, "a size is negative");
    total = times(total, size > 1 ? size : 1);
  }
  if (total > kLargest) fail(kInvalidArgument, "sizes are too large");
}

inline int64_t count(const int64_t* begin, const int64_t* end) {
  int64_t total = 1;
  while (begin != end) total *= *begin++;
  return total;
}

inline int64_t count(const Shape& shape) { return count(shape.begin(), shape.end()); }

// Whether a shape is repeated along some axes, or has some more, to be another.
inline bool broadcasts(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return false;
  const size_t missing = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 1 && from[d] != to[d + missing]) return false;
  }
  return true;
}

struct Tensor {
  ElementType type;
  Shape shape;
  void* data;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t size() const { return count(shape); }

  // The sizes that a tensor of integers holds.
  ONCE Shape sizes() const {
    Shape read(as<int64_t>(), as<int64_t>() + size());
    check_sizes(read);
    return read;
  }
};

constexpr size_t kMost = 20;  // inputs, or results
using Tensors = Few<Tensor, kMost>;
