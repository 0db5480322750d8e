// Batch normalization in training, and its gradient: channels are axis 1, one after the other.
#pragma once

#include <algorithm>
#include <cmath>

#include "floats.h"
#include "kernel.h"
#include "sums.h"

// A tensor as batches of channels of neighbouring elements.
struct Channels {
  int64_t batch, channels, area;

  explicit Channels(const Shape& shape) {
    if (shape.size() < 2) fail(kInvalidArgument, "a batch norm needs two axes");
    batch = shape[0];
    channels = shape[1];
    area = count(shape.begin() + 2, shape.end());
    if (each() == 0) batch = area = 0;  // nothing to go through, however many times
  }

  int64_t each() const { return batch * area; }

  // How many channels are worth a thread.
  int64_t part() const { return part_of(each()); }

  int64_t at(int64_t n, int64_t channel) const { return (n * channels + channel) * area; }

  void expect(const Tensor& statistic) const {
    if (statistic.size() != channels) fail(kInvalidArgument, "a statistic of other channels");
  }
};

class BatchNorm : public Operator {
 public:
  static constexpr const char* name = "BatchNorm";
  // x, weight, bias; results: y, mean, reciprocal deviation, variance
  static constexpr ElementType inputs[] = {kFloating, kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating, kFloating, kFloating, kFloating};

  explicit BatchNorm(const Info& info) : epsilon_(info.number("epsilon")) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0), weight = context.input(1), bias = context.input(2);
    Channels by(x.shape);
    by.expect(weight);
    by.expect(bias);
    Written y(context, 0, x.shape);
    const Shape each{by.channels};
    Written means(context, 1, each), rstds(context, 2, each);
    Written variances(context, 3, each);
    Floats planes(x);
    AllFloats weights(weight), shifts(bias);
    context.each(by.channels, by.part(), [&](int64_t c) {
      double total = 0, squares = 0;
      for (int64_t n = 0; n < by.batch; ++n) {
        const float* from = planes.at(by.at(n, c), by.area, 0);
        total += sum_of<double>(by.area, [=](int64_t i) { return from[i]; });
      }
      const auto mean = static_cast<float>(total / by.each());
      for (int64_t n = 0; n < by.batch; ++n) {
        const float* from = planes.at(by.at(n, c), by.area, 0);
        squares += sum_of(by.area, [=](int64_t i) {
          float d = from[i] - mean;
          return d * d;
        });
      }
      // torch keeps the sum as a float.
      double variance = static_cast<float>(squares) / static_cast<double>(by.each());
      double rstd = 1 / std::sqrt(variance + epsilon_);
      means.put(c, mean);
      rstds.put(c, static_cast<float>(rstd));
      variances.put(c, static_cast<float>(variance));
      const auto scale = static_cast<float>(rstd * weights[c]);
      const float shift = shifts[c], moved = shift - mean * scale;
      const bool is_finite = std::isfinite(moved) && std::isfinite(scale) && scale != 0;
      for (int64_t n = 0; n < by.batch; ++n) {
        const float* from = planes.at(by.at(n, c), by.area, 0);
        y.put(by.at(n, c), by.area, 1, [=](float* to) {
          if (!is_finite) {  // what torch computes: where it is infinite, where NaN, hangs on that
            for (int64_t i = 0; i < by.area; ++i) to[i] = from[i] * scale + moved;
            return;
          }
          for (int64_t i = 0; i < by.area; ++i) to[i] = (from[i] - mean) * scale + shift;
        });
      }
    });
  }

 private:
  double epsilon_;
};

// Batch normalization by statistics that are given, and what is added to it.
class BatchNormInference : public Operator {
 public:
  static constexpr const char* name = "BatchNormInference";
  // x, weight, bias, mean, variance; perhaps what is added, of the shape of x
  static constexpr ElementType inputs[] = {kFloating, kFloating, kFloating, kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating};
  static constexpr bool variadic = true;
  static constexpr size_t most = 6;
  static constexpr bool never_fails = true;

  explicit BatchNormInference(const Info& info)
      : type_(info.output_type(0)),
        adds_(info.inputs() == most),
        relu_(info.flag("relu", false)),
        epsilon_(info.number("epsilon")) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0);
    const Tensor added = context.input(adds_ ? 5 : 0);
    Channels by(x.shape);
    if (added.shape != x.shape) fail(kInvalidArgument, "what is added has another shape");
    for (size_t i = 1; i < 5; ++i) by.expect(context.input(i));
    const Tensor y{type_, x.shape, context.output(0, x.shape)};
    if (by.each() == 0) return;
    const AllFloats weight(context.input(1)), bias(context.input(2));
    const AllFloats mean(context.input(3)), variance(context.input(4));
    std::vector<float> factors(static_cast<size_t>(by.channels)), shifts(factors.size());
    find_factors(by.channels, weight.data(), bias.data(), mean.data(), variance.data(), epsilon_,
                 factors.data(), shifts.data());
    const Floats given(x), others(added), made(y);
    const Written written(type_, y.data);
    // Several channels at once, where they are small.
    const int64_t some = part_of(by.area, kAtOnce);
    context.parallel(by.batch * by.channels, part_of(by.area), [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += some) {
        const int64_t planes = std::min(some, end - first), at = first * by.area, n = planes * by.area;
        const float* from = given.at(at, n, 0);
        written.put(at, n, 1, [&](float* to) {
          normalize(by, first, planes, from, factors.data(), shifts.data(), to);
          if (!adds_) cut(to, n);
        });
        if (!adds_) continue;
        const float *normalized = made.at(at, n, 2), *other = others.at(at, n, 3);  // rounded to its type
        written.put(at, n, 1, [&](float* to) {
          for (int64_t i = 0; i < n; ++i) to[i] = normalized[i] + other[i];
          cut(to, n);
        });
      }
    });
  }

  // As torch does it: where a number is infinite, and where NaN, hangs on that.
  static void find_factors(int64_t n, const float* weight, const float* bias, const float* mean,
                           const float* variance, double epsilon, float* factors, float* shifts) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      factors[i] = static_cast<float>(1 / std::sqrt(variance[i] + epsilon)) * weight[i];
      shifts[i] = bias[i] - mean[i] * factors[i];
    }
  }

 private:
  static constexpr int64_t kAtOnce = 2048;

  static void normalize(const Channels& by, int64_t first, int64_t planes, const float* from,
                        const float* factors, const float* shifts, float* to) {
    int64_t c = first % by.channels;
    if (by.area == 1) {
      for (int64_t i = 0; i < planes; c = 0) {
        const int64_t end = std::min(planes, i + by.channels - c);
#pragma GCC ivdep
        for (; i < end; ++i, ++c) to[i] = from[i] * factors[c] + shifts[c];
      }
      return;
    }
    for (int64_t p = 0; p < planes; ++p, from += by.area, to += by.area) {
      const float factor = factors[c], shift = shifts[c];
#pragma GCC ivdep
      for (int64_t i = 0; i < by.area; ++i) to[i] = from[i] * factor + shift;
      c = c + 1 == by.channels ? 0 : c + 1;
    }
  }

  void cut(float* to, int64_t n) const {
    if (!relu_) return;
    for (int64_t i = 0; i < n; ++i) to[i] = to[i] < 0 ? 0 : to[i];
  }

  ElementType type_;
  bool adds_, relu_;
  double epsilon_;
};

class BatchNormGrad : public Operator {
 public:
  static constexpr const char* name = "BatchNormGrad";
  // gradient, x, weight, mean, reciprocal deviation; results: gradients of weight, bias and x
  static constexpr ElementType inputs[] = {kFloating, kFloating, kFloating, kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating, kFloating, kFloating};
  static constexpr bool last_optional = true;

  // Statistics of the batch depend on x, others do not.
  explicit BatchNormGrad(const Info& info) : of_batch_(info.flag("training", true)) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), x = context.input(1), weight = context.input(2);
    Tensor means = context.input(3), rstds = context.input(4);
    Channels by(x.shape);
    if (gradient.shape != x.shape) fail(kInvalidArgument, "the gradient has another shape than x");
    for (const Tensor* statistic : {&weight, &means, &rstds}) by.expect(*statistic);
    const Shape each{by.channels};
    Written of_weight(context, 0, each);
    Written of_bias(context, 1, each);
    Written of_x(context, 2, x.shape, kOptional);
    Floats gradients(gradient), planes(x);
    AllFloats all_means(means), all_rstds(rstds), weights(weight);
    context.each(by.channels, by.part(), [&](int64_t c) {
      const float mean = all_means[c], rstd = all_rstds[c];
      Two total;
      for (int64_t n = 0; n < by.batch; ++n) {
        const float* g = gradients.at(by.at(n, c), by.area, 0);
        const float* from = planes.at(by.at(n, c), by.area, 1);
        Two sums = sums_of(by.area, [=](int64_t i, float& a, float& b) {
          a += g[i];
          b += g[i] * (from[i] - mean);
        });
        total.a += sums.a;
        total.b += sums.b;
      }
      of_bias.put(c, static_cast<float>(total.a));
      of_weight.put(c, static_cast<float>(total.b * rstd));
      if (!of_x) return;
      double share = of_batch_ ? 1.0 / by.each() : 0.0;
      const auto average = static_cast<float>(of_batch_ ? total.a * share : 0.0);
      const auto slope = static_cast<float>(of_batch_ ? total.b * share * rstd * rstd : 0.0);
      const float factor = rstd * weights[c];
      for (int64_t n = 0; n < by.batch; ++n) {
        const float* g = gradients.at(by.at(n, c), by.area, 0);
        const float* from = planes.at(by.at(n, c), by.area, 1);
        of_x.put(by.at(n, c), by.area, 2, [=](float* to) {
          if (!of_batch_) {
            for (int64_t i = 0; i < by.area; ++i) to[i] = g[i] * factor;
            return;
          }
          for (int64_t i = 0; i < by.area; ++i) {
            to[i] = (g[i] - average - (from[i] - mean) * slope) * factor;
          }
        });
      }
    });
  }

 private:
  bool of_batch_;
};

static const Operators<BatchNorm, BatchNormInference, BatchNormGrad> batch_norm_operators;
