// Rotary: x * cos + rotated(x) * sin, where rotated(x) = (-second half, first half) along the last
// dimension; and its gradient, x * cos - rotated(x * sin), with the attribute `gradient`.
#pragma once

#include "elementwise.h"

class Rotary {
 public:
  static constexpr const char* name = "Rotary";
  static constexpr ElementType inputs[] = {kAny};  // x, cos, sin
  static constexpr ElementType outputs[] = {kAny};
  static constexpr bool variadic = true;
  static constexpr size_t in_place = 0;

  explicit Rotary(const Info& info) : gradient_(info.flag("gradient", false)) {
    dispatch(info.input_type(0), [](auto, auto) {});
    if (info.inputs() != 3 || info.outputs() != 1) {
      fail(kInvalidArgument, "Rotary reads x, cos and sin");
    }
  }

  void compute(const Context& context) const {
    Tensors given;
    for (size_t i = 0; i < 3; ++i) given.push_back(context.input(i));
    const Shape& shape = given[0].shape;
    if (shape.empty() || shape.back() % 2 != 0 || broadcast(given) != shape) {
      fail(kInvalidArgument, "cos and sin of Rotary do not fit x");
    }
    for (size_t i = 1; i < 3; ++i) {
      if (given[i].shape.empty() || given[i].shape.back() != shape.back()) {
        fail(kInvalidArgument, "cos and sin of Rotary have another last dimension than x");
      }
    }
    void* output = context.output(0, shape);
    int64_t size = shape.back(), total = count(shape);
    if (total == 0) return;
    Reach cos(given[1].shape, shape), sin(given[2].shape, shape);
    dispatch(given[0].type, [&](auto stored, auto computed) {
      using T = decltype(stored);
      using C = decltype(computed);
      int64_t part = std::max<int64_t>(1, 16384 / size);
      context.parallel(total / size, part, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* x = given[0].as<T>() + row * size;
          const T* c = given[1].as<T>() + start(cos, row * size);
          const T* s = given[2].as<T>() + start(sin, row * size);
          rotate<T, C>(x, c, s, static_cast<T*>(output) + row * size, size / 2);
        }
      });
    });
  }

 private:
  static int64_t start(const Reach& reach, int64_t at) {
    int64_t found = 0;
    reach.rows(at, 1, [&](int64_t offset, int64_t, int64_t) { found = offset; });
    return found;
  }

  template <typename T, typename C>
  void rotate(const T* x, const T* c, const T* s, T* y, int64_t half) const {
    const C sign = gradient_ ? C(-1) : C(1);
    const T *first = gradient_ ? s + half : s, *second = gradient_ ? s : s + half;
    for (int64_t i = 0; i < half; ++i) {
      narrow(C(widen(x[i])) * C(widen(c[i])) - sign * C(widen(x[i + half])) * C(widen(first[i])),
             y[i]);
    }
    for (int64_t i = 0; i < half; ++i) {
      narrow(C(widen(x[i + half])) * C(widen(c[i + half])) +
                 sign * C(widen(x[i])) * C(widen(second[i])),
             y[i + half]);
    }
  }

  bool gradient_;
};
