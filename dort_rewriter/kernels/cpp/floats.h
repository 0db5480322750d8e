// Numbers of any type that is computed in float, read and written as floats: where they are if they
// are floats, else by way of memory of the thread, a row at a time.
#pragma once

#include <vector>

#include "kernel.h"

// Memory for n floats, that of the same place being used again.
inline float* room(size_t place, int64_t n) {
  static thread_local std::vector<float> memory[4];
  if (memory[place].size() < static_cast<size_t>(n)) memory[place].resize(n);
  return memory[place].data();
}

ONCE inline void widen_row(ElementType type, const void* from, float* to, int64_t n) {
  if (type == kFloat16) {
    widen_all(static_cast<const Half*>(from), to, n);
  } else {
    widen_all(static_cast<const Bfloat*>(from), to, n);
  }
}

ONCE inline void narrow_row(ElementType type, const float* from, void* to, int64_t n) {
  if (type == kFloat16) {
    narrow_all(from, static_cast<Half*>(to), n);
  } else {
    narrow_all(from, static_cast<Bfloat*>(to), n);
  }
}

// What a kernel reads.
class Floats {
 public:
  explicit Floats(const Tensor& tensor) : type_(tensor.type), data_(tensor.data) {}

  bool are_there() const { return type_ == kFloat; }

  // The n numbers from `begin` on; those of the same place are overwritten.
  const float* at(int64_t begin, int64_t n, size_t place) const {
    return read(begin, n, are_there() ? nullptr : room(place, n));
  }

  // The n numbers from `begin` on: where they are, or written to `to`.
  const float* read(int64_t begin, int64_t n, float* to) const {
    if (are_there()) return static_cast<const float*>(data_) + begin;
    widen_row(type_, static_cast<const uint16_t*>(data_) + begin, to, n);
    return to;
  }

 private:
  ElementType type_;
  const void* data_;
};

// What a kernel reads more than once: all of it.
class AllFloats {
 public:
  explicit AllFloats(const Tensor& tensor) : data_(tensor.as<float>()) {
    if (tensor.type == kFloat) return;
    memory_.resize(tensor.size());
    widen_row(tensor.type, tensor.data, memory_.data(), tensor.size());
    data_ = memory_.data();
  }
  AllFloats(const AllFloats&) = delete;
  const float* data() const { return data_; }
  float operator[](int64_t i) const { return data_[i]; }

 private:
  std::vector<float> memory_;
  const float* data_;
};

// What a kernel writes; null when it is unused.
class Written {
 public:
  Written(ElementType type, void* data) : type_(type), data_(data) {}
  Written(const Context& context, size_t index, const Shape& shape, Arity arity = kRequired)
      : Written(context.output_type(index), arity == kRequired
                                                ? context.output(index, shape)
                                                : context.optional_output(index, shape)) {}
  explicit operator bool() const { return data_ != nullptr; }

  // Call work(to), which writes the n numbers from `begin` on.
  template <typename F>
  void put(int64_t begin, int64_t n, size_t place, F&& work) const {
    if (type_ == kFloat) {
      work(static_cast<float*>(data_) + begin);
      return;
    }
    float* to = room(place, n);
    work(to);
    narrow_row(type_, to, static_cast<uint16_t*>(data_) + begin, n);
  }

  void put(int64_t i, float value) const {
    if (type_ == kFloat) {
      static_cast<float*>(data_)[i] = value;
    } else {
      narrow_row(type_, &value, static_cast<uint16_t*>(data_) + i, 1);
    }
  }

 private:
  ElementType type_;
  void* data_;
};
