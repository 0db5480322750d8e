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

static const Operators<BatchNorm, BatchNormGrad> batch_norm_operators;
