// The operators that a program is made of: each over some elements of one type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "functions.h"
#include "half.h"

enum Operation : int64_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMax,
  kMin,
  kNeg,
  kAbs,
  kSqrt,
  kReciprocal,
  kRelu,
  kSigmoid,
  kExp,
  kEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kWhere,
  kErf,
  kTanh,
  kLog,
  kNot,
  kPow,
  kToFloat16,
  kToBfloat16,
  kGelu,
  kOperations,
};

// How many operands an operation reads: what stands in the place of others is not looked at.
constexpr size_t arity_of(int64_t operation) {
  if (operation == kWhere) return 3;
  bool single =
      (operation >= kNeg && operation <= kExp) || (operation >= kErf && operation != kPow);
  return single ? 1 : 2;
}

template <typename C>
using Step = void (*)(const C* a, const C* b, const C* c, C* out, int64_t n);

inline float as_bfloat(float value) {
  uint32_t bits = round_to_bfloat(value) & 0xffff0000u;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline double as_bfloat(double value) { return value; }  // refused when a program is read

// The result may stand where an operand does: element i depends on element i only.
#define ELEMENTWISE(name, expression)                                         \
  template <typename C>                                                       \
  void name(const C* a, const C* b, const C* c, C* out, int64_t n) {          \
    (void)b, (void)c;                                                         \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) out[i] = expression; \
  }
ELEMENTWISE(add, a[i] + b[i])
ELEMENTWISE(subtract, a[i] - b[i])
ELEMENTWISE(multiply, a[i] * b[i])
ELEMENTWISE(divide, a[i] / b[i])
ELEMENTWISE(maximum, (a[i] > b[i] || a[i] != a[i]) ? a[i] : b[i])
ELEMENTWISE(minimum, (a[i] < b[i] || a[i] != a[i]) ? a[i] : b[i])
ELEMENTWISE(negate, -a[i])
ELEMENTWISE(absolute, std::fabs(a[i]))
ELEMENTWISE(square_root, std::sqrt(a[i]))
ELEMENTWISE(reciprocal, C(1) / a[i])
ELEMENTWISE(relu, a[i] < C(0) ? C(0) : a[i])
ELEMENTWISE(sigmoid, C(1) / (C(1) + exponential(-a[i])))
ELEMENTWISE(exp_all, exponential(a[i]))
ELEMENTWISE(equal, a[i] == b[i] ? C(1) : C(0))
ELEMENTWISE(less, a[i] < b[i] ? C(1) : C(0))
ELEMENTWISE(less_or_equal, a[i] <= b[i] ? C(1) : C(0))
ELEMENTWISE(greater, a[i] > b[i] ? C(1) : C(0))
ELEMENTWISE(greater_or_equal, a[i] >= b[i] ? C(1) : C(0))
ELEMENTWISE(choose, a[i] != C(0) ? b[i] : c[i])
ELEMENTWISE(erf_all, error_function(a[i]))
ELEMENTWISE(tanh_all, hyperbolic_tangent(a[i]))
ELEMENTWISE(log_all, logarithm(a[i]))
ELEMENTWISE(opposite, a[i] == C(0) ? C(1) : C(0))
ELEMENTWISE(power, std::pow(a[i], b[i]))
ELEMENTWISE(to_bfloat, as_bfloat(a[i]))
ELEMENTWISE(gelu, a[i] * (C(0.5) * (C(1) + error_function(a[i] * C(0.70710678118654752440)))))
#undef ELEMENTWISE

// By way of a few of them: processors convert vectors.
template <typename C>
void to_half(const C* a, const C*, const C*, C* out, int64_t n) {
  constexpr int64_t kFew = 64;
  Half few[kFew];
  for (int64_t i = 0; i < n; i += kFew) {
    int64_t m = std::min(kFew, n - i);
    narrow_all(a + i, few, m);
    widen_all(few, out + i, m);
  }
}

template <typename C>
constexpr Step<C> kSteps[kOperations] = {
    add<C>,         subtract<C>,   multiply<C>,      divide<C>,  maximum<C>,
    minimum<C>,     negate<C>,     absolute<C>,      square_root<C>, reciprocal<C>,
    relu<C>,        sigmoid<C>,    exp_all<C>,       equal<C>,   less<C>,
    less_or_equal<C>, greater<C>,  greater_or_equal<C>, choose<C>,
    erf_all<C>,     tanh_all<C>,   log_all<C>,       opposite<C>, power<C>,
    to_half<C>,     to_bfloat<C>,  gelu<C>,
};
