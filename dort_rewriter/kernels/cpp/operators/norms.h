// Norms of rows and their gradients.
//
// What is read and written is of any type that is computed in float: it is rounded once.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "floats.h"
#include "moments.h"
#include "rows.h"
#include "sums.h"

class LayerNorm : public Operator {
 public:
  static constexpr const char* name = "LayerNorm";
  // x, weight, bias; results: y, mean, reciprocal deviation
  static constexpr ElementType inputs[] = {kFloating, kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating, kFloating, kFloating};
  static constexpr bool never_fails = true;

  explicit LayerNorm(const Info& info)
      : axes_(info.integer("axes", 1, 1, kMostAxes)),
        epsilon_(info.number("epsilon")),
        apart_(info.flag("lanes_apart", true)) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0), weight = context.input(1), bias = context.input(2);
    Rows by(x.shape, axes_);
    by.expect(weight, by.width);
    by.expect(bias, by.width);
    Shape each = x.shape;
    for (int64_t d = 0; d < axes_; ++d) each[each.size() - 1 - d] = 1;
    Written y(context, 0, x.shape), means(context, 1, each);
    Written rstds(context, 2, each);
    AllFloats weights(weight), shifts(bias);
    const float *w = weights.data(), *shift = shifts.data();
    Floats rows(x);
    context.each(by.rows, by.part(), [&](int64_t r) {
      const float* from = rows.at(r * by.width, by.width, 0);
      double total = sum_of<double>(by.width, [=](int64_t i) { return from[i]; });
      auto mean = static_cast<float>(total / by.width);
      double squares = sum_of(by.width, [=](int64_t i) {
        float d = from[i] - mean;
        return d * d;
      });
      if (!(squares < kHugeSquares && std::abs(mean) < kHugeMean)) {
        const Moments moments = torch_moments(from, by.width, x.type != kFloat, apart_);
        mean = moments.mean;
        squares = moments.squares;
      }
      const auto rstd = static_cast<float>(1 / std::sqrt(squares / by.width + epsilon_));
      means.put(r, mean);
      rstds.put(r, rstd);
      y.put(r * by.width, by.width, 1, [&](float* to) {
        for (int64_t i = 0; i < by.width; ++i) to[i] = (from[i] - mean) * rstd * w[i] + shift[i];
      });
    });
  }

 private:
  int64_t axes_;
  double epsilon_;
  bool apart_;  // whether torch joins vectors in an order of their own
};

// The variance of rows, or its root, as torch moves both it and the mean from number to number.
class Variance : public Operator {
 public:
  static constexpr const char* name = "Variance";
  // x; results: variance, mean
  static constexpr ElementType inputs[] = {kFloating};
  static constexpr ElementType outputs[] = {kFloating, kFloating};
  static constexpr bool last_optional = true;
  static constexpr bool never_fails = true;

  explicit Variance(const Info& info)
      : axes_(info.integer("axes", 1, 1, kMostAxes)),
        correction_(info.number("correction")),
        root_(info.flag("root", false)),
        of_float_(info.flag("float_mean", false)) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0);
    Rows by(x.shape, axes_);
    Shape each = x.shape;
    for (int64_t d = 0; d < axes_; ++d) each[each.size() - 1 - d] = 1;
    Written variances(context, 0, each);
    Written means(context, 1, each, kOptional);
    Floats rows(x);
    const double degrees = std::max(0.0, static_cast<double>(by.width) - correction_);
    context.each(by.rows, by.part(), [&](int64_t r) {
      const float* from = rows.at(r * by.width, by.width, 0);
      double mean = sum_of<double>(by.width, [=](int64_t i) { return from[i]; });
      // torch's mean of all numbers, without their variance, is a float, and so is its sum.
      if (of_float_) mean = static_cast<float>(mean);
      mean = mean / static_cast<double>(by.width) + 0.0;
      double squares = sum_of<double>(by.width, [=](int64_t i) {
        const double d = from[i] - mean;
        return d * d;
      });
      if (!std::isfinite(squares) && !of_float_) mean = moved(from, by.width);
      const double variance = squares / degrees;
      variances.put(r, static_cast<float>(root_ ? std::sqrt(variance) : variance));
      if (means) means.put(r, static_cast<float>(mean));
    });
  }

 private:
  // The mean as it moves from number to number: back from an infinity it is NaN.
  static double moved(const float* from, int64_t n) {
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) mean += (from[i] - mean) / static_cast<double>(i + 1);
    return mean;
  }

  int64_t axes_;
  double correction_;
  bool root_, of_float_;
};

class LayerNormGrad : public Operator {
 public:
  static constexpr const char* name = "LayerNormGrad";
  // gradient, x, mean, reciprocal deviation, weight; results: gradients of weight, bias and x
  static constexpr ElementType inputs[] = {kFloating, kFloating, kFloating, kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating, kFloating, kFloating};
  static constexpr bool last_optional = true;
  static constexpr bool never_fails = true;

  explicit LayerNormGrad(const Info& info) : axes_(info.integer("axes", 1, 1, kMostAxes)) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), x = context.input(1), mean = context.input(2);
    Tensor rstd = context.input(3), weight = context.input(4);
    Rows by(x.shape, axes_);
    if (gradient.shape != x.shape) fail(kInvalidArgument, "the gradient has another shape than x");
    by.expect(mean, by.rows);
    by.expect(rstd, by.rows);
    by.expect(weight, by.width);
    Shape inner(x.shape.end() - axes_, x.shape.end());
    Written of_weight(context, 0, inner);
    Written of_bias(context, 1, inner);
    Written of_x(context, 2, x.shape, kOptional);
    if (by.width == 0) return;
    const int64_t n = by.width;
    Floats gradients(gradient), values(x);
    AllFloats means(mean), rstds(rstd), weights(weight);
    // Sums over rows are made part by part, so that they do not depend on the number of threads.
    int64_t parts = (by.rows + kRows - 1) / kRows;
    std::vector<float> sums(parts * 2 * n);
    context.parallel(parts, std::max<int64_t>(1, by.part() / kRows), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin * kRows; r < std::min(end * kRows, by.rows); ++r) {
        float* part = sums.data() + r / kRows * 2 * n;
        const float *g = gradients.at(r * n, n, 0), *from = values.at(r * n, n, 1);
        add(g, from, n, means[r], rstds[r], part, part + n);
        if (!of_x) continue;
        of_x.put(r * n, n, 2, [&](float* to) {
          row(g, from, weights.data(), n, means[r], rstds[r], to);
        });
      }
    });
    sum_parts(sums.data(), parts, n, of_weight);
    sum_parts(sums.data() + n, parts, n, of_bias);
  }

 private:
  static constexpr int64_t kRows = 64;

  static void add(const float* g, const float* x, int64_t n, float mean, float rstd, float* weights,
                  float* biases) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      weights[i] += g[i] * ((x[i] - mean) * rstd);
      biases[i] += g[i];
    }
  }

  static void row(const float* g, const float* x, const float* w, int64_t n, float mean, float rstd,
                  float* to) {
    Two total = sums_of(n, [=](int64_t i, float& a, float& b) {
      float scaled = g[i] * w[i];
      a += scaled;
      b += scaled * (x[i] - mean);
    });
    const auto average = static_cast<float>(total.a / n);
    const auto slope = static_cast<float>(total.b * rstd * rstd / n);
    const bool is_zero = average == 0 && slope == 0;
    if (is_zero || !std::isfinite(average) || !std::isfinite(slope) || !std::isfinite(mean * slope)) {
      return torch_row(g, x, w, n, mean, rstd, to);
    }
    for (int64_t i = 0; i < n; ++i) {
      to[i] = (g[i] * w[i] - average - (x[i] - mean) * slope) * rstd;
    }
  }

  // The same in the steps of torch: which number is infinite, which NaN, and the sign of a zero hang
  // on them.
  static void torch_row(const float* g, const float* x, const float* w, int64_t n, float mean,
                        float rstd, float* to) {
    Two total = sums_of(n, [=](int64_t i, float& a, float& b) {
      a += g[i] * w[i];
      b += g[i] * x[i] * w[i];
    }, -0.0f);
    const auto of_one = static_cast<float>(total.a), of_x = static_cast<float>(total.b);
    const float share = 1.0f / static_cast<float>(n);
    const float slope = (of_one * mean - of_x) * rstd * rstd * rstd * share;
    const float shift = -slope * mean - of_one * rstd * share;
    for (int64_t i = 0; i < n; ++i) to[i] = rstd * g[i] * w[i] + slope * x[i] + shift;
  }

  // The sums of every second row of parts.
  static void sum_parts(const float* sums, int64_t parts, int64_t n, const Written& result) {
    result.put(0, n, 3, [=](float* to) {
      for (int64_t i = 0; i < n; ++i) {
        double total = 0;
        for (int64_t p = 0; p < parts; ++p) total += sums[2 * p * n + i];
        to[i] = static_cast<float>(total);
      }
    });
  }

  int64_t axes_;
};

// A norm by the root of the mean square, along the last axis.
class RmsNorm : public Operator {
 public:
  static constexpr const char* name = "RmsNorm";
  // x, weight; results: y, reciprocal root
  static constexpr ElementType inputs[] = {kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating, kFloating};
  static constexpr bool last_optional = true;
  static constexpr bool never_fails = true;

  explicit RmsNorm(const Info& info) : epsilon_(info.number("epsilon")) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0), weight = context.input(1);
    Rows by(x.shape, 1);
    by.expect(weight, by.width);
    Shape each = x.shape;
    each.back() = 1;
    Written y(context, 0, x.shape);
    Written roots(context, 1, each, kOptional);
    if (by.width == 0 && !roots) return;  // however many rows of nothing
    AllFloats weights(weight);
    const float* w = weights.data();
    Floats rows(x);
    context.each(by.rows, by.part(), [&](int64_t r) {
      const float* from = rows.at(r * by.width, by.width, 0);
      double squares = sum_of(by.width, [=](int64_t i) { return from[i] * from[i]; });
      const auto root = static_cast<float>(1 / std::sqrt(squares / by.width + epsilon_));
      if (roots) roots.put(r, root);
      y.put(r * by.width, by.width, 1, [&](float* to) {
        for (int64_t i = 0; i < by.width; ++i) to[i] = from[i] * root * w[i];
      });
    });
  }

 private:
  double epsilon_;
};

// The gradient of a norm by the root of the mean square, along the last axis.
class RmsNormGrad : public Operator {
 public:
  static constexpr const char* name = "RmsNormGrad";
  // gradient, x, reciprocal root, weight; result: the gradient of x
  static constexpr ElementType inputs[] = {kFloating, kFloating, kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating};
  static constexpr bool never_fails = true;

  explicit RmsNormGrad(const Info&) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), x = context.input(1), root = context.input(2);
    Tensor weight = context.input(3);
    Rows by(x.shape, 1);
    if (gradient.shape != x.shape) fail(kInvalidArgument, "the gradient has another shape than x");
    by.expect(root, by.rows);
    by.expect(weight, by.width);
    Floats gradients(gradient), rows(x);
    AllFloats roots(root), weights(weight);
    Written output(context, 0, x.shape);
    const float* w = weights.data();
    const int64_t n = by.width;
    context.each(by.rows, by.part(), [&](int64_t r) {
      const float *g = gradients.at(r * n, n, 0), *values = rows.at(r * n, n, 1);
      const float scale = roots[r];
      double total = sum_of(n, [=](int64_t i) { return g[i] * w[i] * values[i]; });
      const auto slope = static_cast<float>(total * scale * scale * scale / n);
      output.put(r * n, n, 2, [=](float* to) {
        for (int64_t i = 0; i < n; ++i) to[i] = g[i] * w[i] * scale - values[i] * slope;
      });
    });
  }
};

static const Operators<LayerNorm, Variance, LayerNormGrad, RmsNorm, RmsNormGrad> norms_operators;
