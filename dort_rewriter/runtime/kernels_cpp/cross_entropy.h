// CrossEntropyGrad: the gradient of a chosen logarithm of a softmax, row by row.
#pragma once

#include <cmath>

#include "functions.h"
#include "kernel.h"

class CrossEntropyGrad {
 public:
  static constexpr const char* name = "CrossEntropyGrad";
  // logarithms, the place chosen in each row, and minus its gradient, of each row or of all
  static constexpr ElementType inputs[] = {kFloat, kInt64, kFloat};
  static constexpr ElementType outputs[] = {kFloat};
  static constexpr bool variadic = false;
  static constexpr size_t in_place = 0;

  explicit CrossEntropyGrad(const Info&) {}

  void compute(const Context& context) const {
    Tensor logarithms = context.input(0), places = context.input(1), gradient = context.input(2);
    const Shape& shape = logarithms.shape;
    if (shape.empty()) fail(kInvalidArgument, "CrossEntropyGrad is of rows");
    int64_t width = shape.back(), rows = count(shape.begin(), shape.end() - 1);
    if (places.size() != rows || (gradient.size() != rows && gradient.size() != 1)) {
      fail(kInvalidArgument, "CrossEntropyGrad takes a place and a gradient for each row");
    }
    const int64_t* chosen = places.as<int64_t>();
    for (int64_t r = 0; r < rows; ++r) {
      if (chosen[r] < -width || chosen[r] >= width) {
        fail(kInvalidArgument, "a place of CrossEntropyGrad is outside of its row");
      }
    }
    const float* from = logarithms.as<float>();
    const float* slopes = gradient.as<float>();
    bool same = gradient.size() == 1;
    float* to = static_cast<float*>(context.output(0, shape));
    int64_t part = std::max<int64_t>(1, 16384 / std::max<int64_t>(width, 1));
    context.parallel(rows, part, [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* x = from + r * width;
        float* y = to + r * width;
        const float slope = slopes[same ? 0 : r];
        if (slope == 0.0f) {  // a row that does not count; what is no number stays none
#pragma GCC ivdep
          for (int64_t i = 0; i < width; ++i) y[i] = x[i] < HUGE_VALF ? 0.0f : NAN;
          continue;
        }
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) y[i] = exponential(x[i]) * slope;
        y[chosen[r] < 0 ? chosen[r] + width : chosen[r]] -= slope;
      }
    });
  }
};
