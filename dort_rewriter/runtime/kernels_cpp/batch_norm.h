// Batch normalization in training, and its gradient: channels are axis 1, one after the other.
#pragma once

#include <algorithm>
#include <cmath>

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
  int64_t part() const { return std::max<int64_t>(1, 16384 / std::max<int64_t>(each(), 1)); }

  int64_t at(int64_t n, int64_t channel) const { return (n * channels + channel) * area; }

  void expect(const Tensor& statistic) const {
    if (statistic.size() != channels) fail(kInvalidArgument, "a statistic of other channels");
  }
};

class BatchNorm {
 public:
  static constexpr const char* name = "BatchNorm";
  // x, weight, bias; results: y, mean, reciprocal deviation, variance
  static constexpr ElementType inputs[] = {kFloat, kFloat, kFloat};
  static constexpr ElementType outputs[] = {kFloat, kFloat, kFloat, kFloat};
  static constexpr bool variadic = false;
  static constexpr size_t in_place = 0;

  explicit BatchNorm(const Info& info) : epsilon_(info.number("epsilon")) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0), weight = context.input(1), bias = context.input(2);
    Channels by(x.shape);
    by.expect(weight);
    by.expect(bias);
    float* y = static_cast<float*>(context.output(0, x.shape));
    Shape each;
    each.push_back(by.channels);
    float* means = static_cast<float*>(context.output(1, each));
    float* rstds = static_cast<float*>(context.output(2, each));
    float* variances = static_cast<float*>(context.output(3, each));
    context.parallel(by.channels, by.part(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        double total = 0, squares = 0;
        for (int64_t n = 0; n < by.batch; ++n) {
          const float* from = x.as<float>() + by.at(n, c);
          total += sum_of(by.area, [=](int64_t i) { return from[i]; });
        }
        const auto mean = static_cast<float>(total / by.each());
        for (int64_t n = 0; n < by.batch; ++n) {
          const float* from = x.as<float>() + by.at(n, c);
          squares += sum_of(by.area, [=](int64_t i) {
            float d = from[i] - mean;
            return d * d;
          });
        }
        double variance = squares / by.each();
        double rstd = 1 / std::sqrt(variance + epsilon_);
        means[c] = mean;
        rstds[c] = static_cast<float>(rstd);
        variances[c] = static_cast<float>(variance);
        const auto scale = static_cast<float>(rstd * weight.as<float>()[c]);
        const float shift = bias.as<float>()[c];
        for (int64_t n = 0; n < by.batch; ++n) {
          const float* from = x.as<float>() + by.at(n, c);
          float* to = y + by.at(n, c);
          for (int64_t i = 0; i < by.area; ++i) to[i] = (from[i] - mean) * scale + shift;
        }
      }
    });
  }

 private:
  double epsilon_;
};

class BatchNormGrad {
 public:
  static constexpr const char* name = "BatchNormGrad";
  // gradient, x, weight, mean, reciprocal deviation; results: gradients of weight, bias and x
  static constexpr ElementType inputs[] = {kFloat, kFloat, kFloat, kFloat, kFloat};
  static constexpr ElementType outputs[] = {kFloat, kFloat, kFloat};
  static constexpr bool variadic = false, last_optional = true;
  static constexpr size_t in_place = 0;

  // Statistics of the batch depend on x, others do not.
  explicit BatchNormGrad(const Info& info) : of_batch_(info.flag("training", true)) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), x = context.input(1), weight = context.input(2);
    Tensor means = context.input(3), rstds = context.input(4);
    Channels by(x.shape);
    if (gradient.shape != x.shape) fail(kInvalidArgument, "the gradient has another shape than x");
    for (const Tensor* statistic : {&weight, &means, &rstds}) by.expect(*statistic);
    Shape each;
    each.push_back(by.channels);
    float* of_weight = static_cast<float*>(context.output(0, each));
    float* of_bias = static_cast<float*>(context.output(1, each));
    float* of_x = static_cast<float*>(context.optional_output(2, x.shape));
    context.parallel(by.channels, by.part(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const float mean = means.as<float>()[c], rstd = rstds.as<float>()[c];
        Two total;
        for (int64_t n = 0; n < by.batch; ++n) {
          const float* g = gradient.as<float>() + by.at(n, c);
          const float* from = x.as<float>() + by.at(n, c);
          Two sums = sums_of(by.area, [=](int64_t i, float& a, float& b) {
            a += g[i];
            b += g[i] * (from[i] - mean);
          });
          total.a += sums.a;
          total.b += sums.b;
        }
        of_bias[c] = static_cast<float>(total.a);
        of_weight[c] = static_cast<float>(total.b * rstd);
        if (of_x == nullptr) continue;
        double share = of_batch_ ? 1.0 / by.each() : 0.0;
        const auto average = static_cast<float>(of_batch_ ? total.a * share : 0.0);
        const auto slope = static_cast<float>(of_batch_ ? total.b * share * rstd * rstd : 0.0);
        const float factor = rstd * weight.as<float>()[c];
        for (int64_t n = 0; n < by.batch; ++n) {
          const float* g = gradient.as<float>() + by.at(n, c);
          const float* from = x.as<float>() + by.at(n, c);
          float* to = of_x + by.at(n, c);
          if (!of_batch_) {
            for (int64_t i = 0; i < by.area; ++i) to[i] = g[i] * factor;
            continue;
          }
          for (int64_t i = 0; i < by.area; ++i) {
            to[i] = (g[i] - average - (from[i] - mean) * slope) * factor;
          }
        }
      }
    });
  }

 private:
  bool of_batch_;
};
