// The gradient of a Gelu: one exponential serves the error function and the bell; the gradient of its
// approximation with a hyperbolic tangent needs one too.
#pragma once

#include "floats.h"
#include "functions.h"
#include "kernel.h"

// The slope of x * P(x), P the normal distribution function: P(x) + x * P'(x).
INLINED float gelu_slope(float x) {
  // P is half of erfc(|x| / sqrt(2)), or what is missing to 1. Of a large argument z the function
  // erfc(z) is e ** (-z * z) times something smooth, fitted as a polynomial of 1 / (1 + 0.4 * z).
  float size = std::fabs(x);
  float bell = exponential(x * x * -0.5f);
  float t = 1.0f / fused(size, 0.282842712f, 1.0f);
  float p = polynomial(t, 0.0495512639f, -0.180123317f, 0.164688811f, -0.00199859065f, 0.139798177f,
                       0.168940986f, 0.207795183f, 0.225671733f, 0.225675847f);
  float tail = 0.5f * p * t * bell;
  float share = x > 0.0f ? 1.0f - tail : tail;
  return fused(x * bell, 0.398942280f, share);
}

// The same of 0.5 * x * (1 + tanh(u)), u a polynomial of x: both the sum and the slope of the
// tangent are quotients of e ** (-2 * |u|), without the difference of numbers near one.
INLINED float gelu_tanh_slope(float x) {
  constexpr float kScale = 0.797884561f, kCube = 0.044715f;  // the root of 2 / pi
  float square = x * x;
  float u = kScale * (x + kCube * (square * x));
  float power = exponential(-2.0f * std::fabs(u));
  float inverse = 1.0f / (1.0f + power);
  float share = x > 0.0f ? inverse : power * inverse;
  float inner = 2 * kScale * (1.0f + 3 * kCube * square);
  return share + x * (power * inverse * inverse) * inner;
}

class GeluGrad : public Operator {
 public:
  static constexpr const char* name = "GeluGrad";
  static constexpr ElementType inputs[] = {kFloating, kFloating};  // gradient, x
  static constexpr ElementType outputs[] = {kFloating};
  static constexpr bool never_fails = true;

  explicit GeluGrad(const Info& info) : tanh_(info.flag("tanh", false)) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), x = context.input(1);
    if (gradient.shape != x.shape) fail(kInvalidArgument, "the gradient has another shape than x");
    Floats gradients(gradient), values(x);
    Written output(context, 0, x.shape);
    context.parallel(x.size(), 8 * kTile, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kTile) {
        int64_t n = std::min(kTile, end - at);
        const float *g = gradients.at(at, n, 0), *from = values.at(at, n, 1);
        output.put(at, n, 2, [=](float* to) { slopes(g, from, to, n); });
      }
    });
  }

 private:
  static constexpr int64_t kTile = 1024;

  void slopes(const float* g, const float* from, float* to, int64_t n) const {
    if (tanh_) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) to[i] = g[i] * gelu_tanh_slope(from[i]);
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) to[i] = g[i] * gelu_slope(from[i]);
    }
  }

  bool tanh_;
};

static const Operators<GeluGrad> gelu_operators;
