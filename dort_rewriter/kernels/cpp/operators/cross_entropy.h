// CrossEntropyGrad: the gradient of a chosen logarithm of a softmax, row by row.
#pragma once

#include <cmath>

#include "floats.h"
#include "functions.h"
#include "kernel.h"

class CrossEntropyGrad : public Operator {
 public:
  static constexpr const char* name = "CrossEntropyGrad";
  // logarithms, the place chosen in each row, and minus its gradient, of each row or of all
  static constexpr ElementType inputs[] = {kFloating, kInt64, kFloating};
  static constexpr ElementType outputs[] = {kFloating};

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
    Floats from(logarithms);
    AllFloats slopes(gradient);
    bool same = gradient.size() == 1;
    Written output(context, 0, shape);
    context.each(rows, part_of(width), [&](int64_t r) {
      const float* x = from.at(r * width, width, 0);
      const float slope = slopes[same ? 0 : r];
      int64_t place = chosen[r] < 0 ? chosen[r] + width : chosen[r];
      output.put(r * width, width, 1, [=](float* y) { row(x, slope, place, width, y); });
    });
  }

 private:
  static void row(const float* x, float slope, int64_t place, int64_t width, float* y) {
    if (slope == 0.0f) {  // a row that does not count; what is no number stays none
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) y[i] = x[i] < HUGE_VALF ? 0.0f : NAN;
      if (y[place] == 0.0f) y[place] = -slope;  // the gradient of the place, of its sign
      return;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) y[i] = exponential(x[i]) * slope + 0.0f;  // 0.0 of either
    y[place] -= slope;
  }
};

static const Operators<CrossEntropyGrad> cross_entropy_operators;
