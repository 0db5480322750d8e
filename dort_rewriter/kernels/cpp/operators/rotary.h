// Rotary: x * cos + rotated(x) * sin, where rotated(x) = (-second half, first half) along the last
// dimension; and its gradient, x * cos - rotated(x * sin), with the attribute `gradient`. With
// `rounding`, a type of 16 bits, the products are rounded to it before they are added.
#pragma once

#include "floats.h"
#include "operations.h"
#include "reach.h"

class Rotary : public Operator {
 public:
  static constexpr const char* name = "Rotary";
  static constexpr ElementType inputs[] = {kEach, kEach, kEach};  // x, cos, sin
  static constexpr ElementType outputs[] = {kEach};
  static constexpr bool never_fails = true;

  explicit Rotary(const Info& info)
      : gradient_(info.flag("gradient", false)),
        rounding_(static_cast<ElementType>(info.integer("rounding", kFloat, kFloat, kBFloat16))),
        wide_(info.input_type(0) == kDouble) {
    for (size_t i = 0; i < 4; ++i) {
      ElementType type = i < 3 ? info.input_type(i) : info.output_type(0);
      if (wide_ ? type != kDouble : !is_floating(type)) {
        fail(kInvalidArgument, "Rotary of other types");
      }
    }
    if (!is_floating(rounding_) || (wide_ && rounding_ != kFloat)) {
      fail(kInvalidArgument, "Rotary rounds to float16 or bfloat16");
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
    auto in_rows = [&](auto&& each) {
      context.each(total / size, part_of(size), [&](int64_t row) {
        int64_t at = row * size;
        each(at, start(cos, at), start(sin, at));
      });
    };
    if (wide_) {
      in_rows([&](int64_t at, int64_t c, int64_t s) {
        rotate(given[0].as<double>() + at, given[1].as<double>() + c, given[2].as<double>() + s,
               static_cast<double*>(output) + at, size / 2);
      });
      return;
    }
    Floats x(given[0]), cosines(given[1]), sines(given[2]);
    Written y(context.output_type(0), output);
    in_rows([&](int64_t at, int64_t c, int64_t s) {
      const float *values = x.at(at, size, 0), *of_cos = cosines.at(c, size, 1);
      const float* of_sin = sines.at(s, size, 2);
      y.put(at, size, 3, [&](float* to) {
        if (rounding_ == kFloat) {
          rotate(values, of_cos, of_sin, to, size / 2);
        } else {
          rotate_rounding(values, of_cos, of_sin, to, size / 2);
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

  template <typename C>
  void rotate(const C* x, const C* c, const C* s, C* y, int64_t half) const {
    const C sign = gradient_ ? C(-1) : C(1);
    const C *first = gradient_ ? s + half : s, *second = gradient_ ? s : s + half;
#pragma GCC ivdep
    for (int64_t i = 0; i < half; ++i) y[i] = x[i] * c[i] - sign * x[i + half] * first[i];
#pragma GCC ivdep
    for (int64_t i = 0; i < half; ++i) {
      y[i + half] = x[i + half] * c[i + half] + sign * x[i] * second[i];
    }
  }

  // By way of the result and of memory of its size.
  void rotate_rounding(const float* x, const float* c, const float* s, float* y,
                       int64_t half) const {
    static thread_local std::vector<float> turned;
    if (turned.size() < static_cast<size_t>(2 * half)) turned.resize(2 * half);
    float* other = turned.data();
    const float *first = gradient_ ? s + half : s, *second = gradient_ ? s : s + half;
    const float sign = gradient_ ? -1.0f : 1.0f;
    for (int64_t i = 0; i < 2 * half; ++i) y[i] = x[i] * c[i];
    for (int64_t i = 0; i < half; ++i) other[i] = -sign * x[i + half] * first[i];
    for (int64_t i = 0; i < half; ++i) other[i + half] = sign * x[i] * second[i];
    const Step<float> round = kSteps<float>[rounding_ == kFloat16 ? kToFloat16 : kToBfloat16];
    round(y, y, y, y, 2 * half);
    round(other, other, other, other, 2 * half);
    for (int64_t i = 0; i < 2 * half; ++i) y[i] += other[i];
  }

  bool gradient_;
  ElementType rounding_;
  bool wide_;
};

static const Operators<Rotary> rotary_operators;
