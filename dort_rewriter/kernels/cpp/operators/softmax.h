// Softmax along the last axis, and its gradient.
//
// What is read and written is of any type that is computed in float: it is rounded once.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "floats.h"
#include "functions.h"
#include "rows.h"
#include "sums.h"

// A softmax, or its logarithm, along the last axis.
class Softmax : public Operator {
 public:
  static constexpr const char* name = "Softmax";
  static constexpr ElementType inputs[] = {kFloating};
  static constexpr ElementType outputs[] = {kFloating};
  static constexpr size_t in_place = 1;
  static constexpr bool never_fails = true;

  explicit Softmax(const Info& info) : log_(info.flag("log", false)) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0);
    Rows by(x.shape, 1);
    Written output(context, 0, x.shape);
    if (by.width == 0) return;
    Floats rows(x);
    const int64_t n = by.width;
    context.each(by.rows, by.part(), [&](int64_t r) {
      const float* from = rows.at(r * n, n, 0);
      const float most = largest(from, n);
      output.put(r * n, n, 1, [=](float* to) { row(from, most, n, to); });
    });
  }

 private:
  // NaN if there is one.
  static float largest(const float* from, int64_t n) {
    float lanes[kLanes];
    std::fill_n(lanes, kLanes, -HUGE_VALF);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int64_t k = 0; k < kLanes; ++k) {
        float value = from[i + k];
        lanes[k] = value > lanes[k] || value != value ? value : lanes[k];
      }
    }
    float most = -HUGE_VALF;
    auto take = [&](float value) { most = value > most || value != value ? value : most; };
    for (float value : lanes) take(value);
    for (; i < n; ++i) take(from[i]);
    return most;
  }

  void row(const float* from, float most, int64_t n, float* to) const {
    if (log_) {
      double total = sum_of(n, [=](int64_t i) { return exponential(from[i] - most); });
      const auto shift = static_cast<float>(std::log(total));
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) to[i] = from[i] - most - shift;
      return;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) to[i] = exponential(from[i] - most);
    const auto share = static_cast<float>(1 / sum_of(n, [=](int64_t i) { return to[i]; }));
    for (int64_t i = 0; i < n; ++i) to[i] *= share;
  }

  bool log_;
};

// The gradient of a softmax, or of its logarithm, along the last axis.
class SoftmaxGrad : public Operator {
 public:
  static constexpr const char* name = "SoftmaxGrad";
  static constexpr ElementType inputs[] = {kFloating, kFloating};  // gradient, result
  static constexpr ElementType outputs[] = {kFloating};
  static constexpr bool never_fails = true;

  explicit SoftmaxGrad(const Info& info) : log_(info.flag("log", false)) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), result = context.input(1);
    if (gradient.shape != result.shape) fail(kInvalidArgument, "the gradient has another shape");
    Rows by(result.shape, 1);
    Written output(context, 0, result.shape);
    if (by.width == 0) return;
    Floats gradients(gradient), results(result);
    const int64_t n = by.width;
    context.each(by.rows, by.part(), [&](int64_t r) {
      const float *g = gradients.at(r * n, n, 0), *y = results.at(r * n, n, 1);
      output.put(r * n, n, 2, [=](float* to) { row(g, y, n, to); });
    });
  }

 private:
  void row(const float* g, const float* y, int64_t n, float* to) const {
    if (log_) {
      const auto total = static_cast<float>(sum_of(n, [=](int64_t i) { return g[i]; }, -0.0f));
      for (int64_t i = 0; i < n; ++i) to[i] = g[i] - exponential(y[i]) * total;
    } else {
      const auto total =
          static_cast<float>(sum_of(n, [=](int64_t i) { return g[i] * y[i]; }, -0.0f));
      for (int64_t i = 0; i < n; ++i) to[i] = (g[i] - total) * y[i];
    }
  }

  bool log_;
};

static const Operators<Softmax, SoftmaxGrad> softmax_operators;
