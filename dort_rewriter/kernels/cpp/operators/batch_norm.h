// Batch normalization in training, and its gradient: channels are axis 1, one after the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "floats.h"
#include "kernel.h"
#include "sums.h"

// How many numbers beside each other are gone through at a time, where a channel has few.
constexpr int64_t kColumns = 512;

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

  // Whether channels are gone through several at a time: one has too few neighbours for vectors.
  bool are_small() const { return 0 < area && area < 64; }

  // Call work(first, count) for some channels at a time, of kColumns numbers at most.
  template <typename F>
  void each_few(const Context& context, F&& work) const {
    context.parallel(channels, part(), [&](int64_t begin, int64_t end) {
      const int64_t most = kColumns / area;
      for (int64_t c = begin; c < end; c += most) work(c, std::min(most, end - c));
    });
  }

  void expect(const Tensor& statistic) const {
    if (statistic.size() != channels) fail(kInvalidArgument, "a statistic of other channels");
  }
};

// One channel, batch after batch, as floats; what has to be widened is widened once where it is
// little, though it is read several times.
class Channel {
 public:
  Channel(const Floats& all, const Channels& by, int64_t channel, size_t place)
      : all_(all), by_(by), channel_(channel), place_(place) {
    if (all.are_there() || by.each() > kLittle) return;
    held_ = room(place, by.each());
    for (int64_t n = 0; n < by.batch; ++n) {
      all.read(by.at(n, channel), by.area, held_ + n * by.area);
    }
  }

  const float* operator[](int64_t n) const {
    if (held_ != nullptr) return held_ + n * by_.area;
    return all_.at(by_.at(n, channel_), by_.area, place_);
  }

 private:
  static constexpr int64_t kLittle = 1 << 14;  // some channels of this fit into a cache

  const Floats& all_;
  const Channels& by_;
  int64_t channel_;
  size_t place_;
  float* held_ = nullptr;
};

// Sums over the batch, a column for each element of some channels beside each other: in floats, and
// in double from 64 rows to the next.
class ColumnSums {
 public:
  explicit ColumnSums(int64_t n) : n_(n) {}

  // What the numbers of a row are added to.
  float* sums() { return sums_; }

  void end_of_row() {
    if (++rows_ == kChunk / kLanes) flush();
  }

  // The sum of the columns from `begin` to `end`, after the last row.
  double sum(int64_t begin, int64_t end) {
    if (rows_ != 0) flush();
    double total = 0;
    for (int64_t i = begin; i < end; ++i) total += totals_[i];
    return total;
  }

 private:
  void flush() {
    for (int64_t i = 0; i < n_; ++i) totals_[i] += sums_[i];
    std::fill_n(sums_, n_, 0.f);
    rows_ = 0;
  }

  int64_t n_, rows_ = 0;
  float sums_[kColumns] = {};
  double totals_[kColumns] = {};
};

inline void cut_negative(float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to[i] < 0 ? 0 : to[i];
}

class BatchNorm : public Operator {
 public:
  static constexpr const char* name = "BatchNorm";
  // x, weight, bias, perhaps what is added, of the shape of x; results: y, mean, reciprocal
  // deviation, variance
  static constexpr ElementType inputs[] = {kFloating, kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating, kFloating, kFloating, kFloating};
  static constexpr bool variadic = true;
  static constexpr size_t most = 4;

  explicit BatchNorm(const Info& info)
      : adds_(info.inputs() == most),
        relu_(info.flag("relu", false)),
        epsilon_(info.number("epsilon")) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0), weight = context.input(1), bias = context.input(2);
    const Tensor added = context.input(adds_ ? 3 : 0);
    Channels by(x.shape);
    by.expect(weight);
    by.expect(bias);
    if (added.shape != x.shape) fail(kInvalidArgument, "what is added has another shape");
    Written y(context, 0, x.shape);
    const Shape each{by.channels};
    Written means(context, 1, each), rstds(context, 2, each);
    Written variances(context, 3, each);
    const Floats all(x), others(added);
    AllFloats weights(weight), shifts(bias);
    const auto affine = [&](int64_t c, float mean, double squares) {
      // torch keeps the sum as a float.
      double variance = static_cast<float>(squares) / static_cast<double>(by.each());
      double rstd = 1 / std::sqrt(variance + epsilon_);
      means.put(c, mean);
      rstds.put(c, static_cast<float>(rstd));
      variances.put(c, static_cast<float>(variance));
      const auto scale = static_cast<float>(rstd * weights[c]);
      const float moved = shifts[c] - mean * scale;
      const bool is_finite = std::isfinite(moved) && std::isfinite(scale) && scale != 0;
      // What torch computes: where it is infinite, and where NaN, hangs on that.
      return is_finite ? Affine{mean, scale, shifts[c]} : Affine{0, scale, moved};
    };
    const auto end = [&](int64_t begin, int64_t n, float* to) {
      if (adds_) {
        const float* other = others.at(begin, n, 2);
        for (int64_t i = 0; i < n; ++i) to[i] += other[i];
      }
      if (relu_) cut_negative(to, n);
    };
    if (by.are_small()) {
      by.each_few(context, [&](int64_t first, int64_t count) {
        normalize_columns(by, all, y, first, count, affine, end);
      });
      return;
    }
    context.each(by.channels, by.part(), [&](int64_t c) {
      const Channel planes(all, by, c, 0);
      double total = 0, squares = 0;
      for (int64_t n = 0; n < by.batch; ++n) {
        const float* from = planes[n];
        total += sum_of<double>(by.area, [=](int64_t i) { return from[i]; });
      }
      const auto mean = static_cast<float>(total / by.each());
      for (int64_t n = 0; n < by.batch; ++n) {
        const float* from = planes[n];
        squares += sum_of(by.area, [=](int64_t i) {
          float d = from[i] - mean;
          return d * d;
        });
      }
      const Affine by_all = affine(c, mean, squares);
      for (int64_t n = 0; n < by.batch; ++n) {
        const float* from = planes[n];
        const int64_t at = by.at(n, c);
        y.put(at, by.area, 1, [&](float* to) {
          const auto [center, scale, shift] = by_all;
          for (int64_t i = 0; i < by.area; ++i) to[i] = (from[i] - center) * scale + shift;
          end(at, by.area, to);
        });
      }
    });
  }

 private:
  struct Affine {
    float center, scale, shift;
  };

  template <typename F, typename G>
  static void normalize_columns(const Channels& by, const Floats& all, const Written& y,
                                int64_t first, int64_t count, const F& affine, const G& end) {
    const int64_t n = count * by.area;
    double totals[kColumns] = {};
    for (int64_t row = 0; row < by.batch; ++row) {
      const float* from = all.at(by.at(row, first), n, 0);
      for (int64_t i = 0; i < n; ++i) totals[i] += from[i];
    }
    float centers[kColumns], scales[kColumns], shifts[kColumns];
    for (int64_t c = 0; c < count; ++c) {
      const double* some = totals + c * by.area;
      double total = 0;
      for (int64_t i = 0; i < by.area; ++i) total += some[i];
      std::fill_n(centers + c * by.area, by.area, static_cast<float>(total / by.each()));
    }
    ColumnSums squares(n);
    for (int64_t row = 0; row < by.batch; ++row, squares.end_of_row()) {
      const float* from = all.at(by.at(row, first), n, 0);
      float* sums = squares.sums();
      for (int64_t i = 0; i < n; ++i) {
        float d = from[i] - centers[i];
        sums[i] += d * d;
      }
    }
    for (int64_t c = 0; c < count; ++c) {
      const int64_t at = c * by.area;
      const auto [center, scale, shift] =
          affine(first + c, centers[at], squares.sum(at, at + by.area));
      std::fill_n(centers + at, by.area, center);
      std::fill_n(scales + at, by.area, scale);
      std::fill_n(shifts + at, by.area, shift);
    }
    for (int64_t row = 0; row < by.batch; ++row) {
      const int64_t begin = by.at(row, first);
      const float* from = all.at(begin, n, 0);
      y.put(begin, n, 1, [&](float* to) {
        for (int64_t i = 0; i < n; ++i) to[i] = (from[i] - centers[i]) * scales[i] + shifts[i];
        end(begin, n, to);
      });
    }
  }

  bool adds_, relu_;
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
      : adds_(info.inputs() == most),
        relu_(info.flag("relu", false)),
        epsilon_(info.number("epsilon")) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0);
    const Tensor added = context.input(adds_ ? 5 : 0);
    Channels by(x.shape);
    if (added.shape != x.shape) fail(kInvalidArgument, "what is added has another shape");
    for (size_t i = 1; i < 5; ++i) by.expect(context.input(i));
    const Tensor y{context.output_type(0), x.shape, context.output(0, x.shape)};
    if (by.each() == 0) return;
    const AllFloats weight(context.input(1)), bias(context.input(2));
    const AllFloats mean(context.input(3)), variance(context.input(4));
    std::vector<float> factors(static_cast<size_t>(by.channels)), shifts(factors.size());
    find_factors(by.channels, weight.data(), bias.data(), mean.data(), variance.data(), epsilon_,
                 factors.data(), shifts.data());
    const Floats given(x), others(added), made(y);
    const Written written(y.type, y.data);
    // Several channels at once, where they are small.
    const int64_t some = part_of(by.area, kAtOnce);
    context.parallel(by.batch * by.channels, part_of(by.area), [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += some) {
        const int64_t planes = std::min(some, end - first), at = first * by.area, n = planes * by.area;
        const float* from = given.at(at, n, 0);
        written.put(at, n, 1, [&](float* to) {
          normalize(by, first, planes, from, factors.data(), shifts.data(), to);
          if (!adds_ && relu_) cut_negative(to, n);
        });
        if (!adds_) continue;
        const float *normalized = made.at(at, n, 2), *other = others.at(at, n, 3);  // rounded to its type
        written.put(at, n, 1, [&](float* to) {
          for (int64_t i = 0; i < n; ++i) to[i] = normalized[i] + other[i];
          if (relu_) cut_negative(to, n);
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

  bool adds_, relu_;
  double epsilon_;
};

class BatchNormGrad : public Operator {
 public:
  static constexpr const char* name = "BatchNormGrad";
  // gradient, x, weight, mean, reciprocal deviation, perhaps the result of the Relu behind it, of
  // the shape of x; results: gradients of weight, bias and x
  static constexpr ElementType inputs[] = {kFloating, kFloating, kFloating, kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating, kFloating, kFloating};
  static constexpr bool variadic = true;
  static constexpr bool last_optional = true;
  static constexpr size_t most = 6;

  // Statistics of the batch depend on x, others do not.
  explicit BatchNormGrad(const Info& info)
      : of_relu_(info.inputs() == most), of_batch_(info.flag("training", true)) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), x = context.input(1), weight = context.input(2);
    Tensor means = context.input(3), rstds = context.input(4);
    const Tensor result = context.input(of_relu_ ? 5 : 0);
    Channels by(x.shape);
    if (gradient.shape != x.shape) fail(kInvalidArgument, "the gradient has another shape than x");
    if (result.shape != x.shape) fail(kInvalidArgument, "the result has another shape than x");
    for (const Tensor* statistic : {&weight, &means, &rstds}) by.expect(*statistic);
    const Shape each{by.channels};
    Written of_weight(context, 0, each);
    Written of_bias(context, 1, each);
    Written of_x(context, 2, x.shape, kOptional);
    const Call call{by,
                    of_batch_,
                    Floats(gradient),
                    Floats(x),
                    Floats(result),
                    AllFloats(means),
                    AllFloats(rstds),
                    AllFloats(weight),
                    of_weight,
                    of_bias,
                    of_x};
    if (of_relu_) {
      run<true>(context, call);
    } else {
      run<false>(context, call);
    }
  }

 private:
  struct Call {
    const Channels& by;
    bool of_batch;
    Floats gradients, all, results;
    AllFloats means, rstds, weights;
    const Written &of_weight, &of_bias, &of_x;
  };

  // What the gradient of x is made of, beside x and the gradient.
  struct Slope {
    float mean, average, slope, factor;
  };

  // The numbers of the gradient from `g` on; none where the result of the Relu is not positive.
  template <bool of_relu>
  static auto taken(const float* g, const float* made) {
    return [=](int64_t i) {
      const float number = g[i];  // read at any rate, so that it is a vector
      return of_relu && made[i] <= 0 ? 0.f : number;
    };
  }

  template <bool of_relu>
  static void run(const Context& context, const Call& call) {
    const Channels& by = call.by;
    if (by.are_small()) {
      by.each_few(context, [&](int64_t first, int64_t count) {
        differentiate_columns<of_relu>(call, first, count);
      });
      return;
    }
    context.each(by.channels, by.part(), [&](int64_t c) {
      const Channel gradients(call.gradients, by, c, 0), planes(call.all, by, c, 1);
      std::optional<Channel> results;
      if (of_relu) results.emplace(call.results, by, c, 3);
      const float mean = call.means[c];
      Two total;
      for (int64_t n = 0; n < by.batch; ++n) {
        const float *from = planes[n], *made = of_relu ? (*results)[n] : nullptr;
        const auto g = taken<of_relu>(gradients[n], made);
        Two sums = sums_of(by.area, [=](int64_t i, float& a, float& b) {
          a += g(i);
          b += g(i) * (from[i] - mean);
        });
        total.a += sums.a;
        total.b += sums.b;
      }
      const Slope by_all = slope_of(call, c, total);
      if (!call.of_x) return;
      for (int64_t n = 0; n < by.batch; ++n) {
        const float *from = planes[n], *made = of_relu ? (*results)[n] : nullptr;
        const auto g = taken<of_relu>(gradients[n], made);
        call.of_x.put(by.at(n, c), by.area, 2, [&](float* to) {
          const auto [center, average, slope, factor] = by_all;
          if (!call.of_batch) {
            for (int64_t i = 0; i < by.area; ++i) to[i] = g(i) * factor;
            return;
          }
          for (int64_t i = 0; i < by.area; ++i) {
            to[i] = (g(i) - average - (from[i] - center) * slope) * factor;
          }
        });
      }
    });
  }

  // The gradients of weight and bias, and what that of x hangs on.
  static Slope slope_of(const Call& call, int64_t c, Two total) {
    const float rstd = call.rstds[c];
    call.of_bias.put(c, static_cast<float>(total.a));
    call.of_weight.put(c, static_cast<float>(total.b * rstd));
    const double share = call.of_batch ? 1.0 / call.by.each() : 0.0;
    const auto average = static_cast<float>(call.of_batch ? total.a * share : 0.0);
    const auto slope = static_cast<float>(call.of_batch ? total.b * share * rstd * rstd : 0.0);
    return {call.means[c], average, slope, rstd * call.weights[c]};
  }

  template <bool of_relu>
  static void differentiate_columns(const Call& call, int64_t first, int64_t count) {
    const Channels& by = call.by;
    const int64_t n = count * by.area;
    float means[kColumns], averages[kColumns], slopes[kColumns];
    float factors[kColumns];
    for (int64_t c = 0; c < count; ++c) {
      std::fill_n(means + c * by.area, by.area, call.means[first + c]);
    }
    ColumnSums of_bias(n), of_weight(n);
    for (int64_t row = 0; row < by.batch; ++row, of_bias.end_of_row(), of_weight.end_of_row()) {
      const int64_t begin = by.at(row, first);
      const float* from = call.all.at(begin, n, 1);
      const auto g = taken<of_relu>(call.gradients.at(begin, n, 0),
                                    of_relu ? call.results.at(begin, n, 3) : nullptr);
      float *a = of_bias.sums(), *b = of_weight.sums();
      for (int64_t i = 0; i < n; ++i) {
        a[i] += g(i);
        b[i] += g(i) * (from[i] - means[i]);
      }
    }
    for (int64_t c = 0; c < count; ++c) {
      const int64_t at = c * by.area, end = at + by.area;
      const Slope found =
          slope_of(call, first + c, Two{of_bias.sum(at, end), of_weight.sum(at, end)});
      std::fill_n(averages + at, by.area, found.average);
      std::fill_n(slopes + at, by.area, found.slope);
      std::fill_n(factors + at, by.area, found.factor);
    }
    if (!call.of_x) return;
    for (int64_t row = 0; row < by.batch; ++row) {
      const int64_t begin = by.at(row, first);
      const float* from = call.all.at(begin, n, 1);
      const auto g = taken<of_relu>(call.gradients.at(begin, n, 0),
                                    of_relu ? call.results.at(begin, n, 3) : nullptr);
      call.of_x.put(begin, n, 2, [&](float* to) {
        if (!call.of_batch) {
          for (int64_t i = 0; i < n; ++i) to[i] = g(i) * factors[i];
          return;
        }
        for (int64_t i = 0; i < n; ++i) {
          to[i] = (g(i) - averages[i] - (from[i] - means[i]) * slopes[i]) * factors[i];
        }
      });
    }
  }

  bool of_relu_, of_batch_;
};

static const Operators<BatchNorm, BatchNormInference, BatchNormGrad> batch_norm_operators;
