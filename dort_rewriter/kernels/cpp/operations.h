// The operators that a program is made of: each over some elements of one type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "functions.h"
#include "half.h"

// The operators: how many operands each reads, and what it gives for numbers a, b and c.
#define OPERATIONS(X)                                                                 \
  X(kAdd, 2, a + b)                                                                   \
  X(kSub, 2, a - b)                                                                   \
  X(kMul, 2, a * b)                                                                   \
  X(kDiv, 2, a / b)                                                                   \
  X(kMax, 2, (a > b || a != a) ? a : b)                                               \
  X(kMin, 2, (a < b || a != a) ? a : b)                                               \
  X(kNeg, 1, -a)                                                                      \
  X(kAbs, 1, std::fabs(a))                                                            \
  X(kSqrt, 1, std::sqrt(a))                                                           \
  X(kReciprocal, 1, C(1) / a)                                                         \
  X(kRelu, 1, a < C(0) ? C(0) : a)                                                    \
  X(kSigmoid, 1, C(1) / (C(1) + exponential(-a)))                                     \
  X(kExp, 1, exponential(a))                                                          \
  X(kEqual, 2, a == b ? C(1) : C(0))                                                  \
  X(kLess, 2, a < b ? C(1) : C(0))                                                    \
  X(kLessOrEqual, 2, a <= b ? C(1) : C(0))                                            \
  X(kGreater, 2, a > b ? C(1) : C(0))                                                 \
  X(kGreaterOrEqual, 2, a >= b ? C(1) : C(0))                                         \
  X(kWhere, 3, a != C(0) ? b : c)                                                     \
  X(kErf, 1, error_function(a))                                                       \
  X(kTanh, 1, hyperbolic_tangent(a))                                                  \
  X(kLog, 1, logarithm(a))                                                            \
  X(kNot, 1, a == C(0) ? C(1) : C(0))                                                 \
  X(kPow, 2, std::pow(a, b))                                                          \
  X(kToFloat16, 1, a) /* see to_half */                                               \
  X(kToBfloat16, 1, as_bfloat(a))                                                     \
  X(kGelu, 1, a * (C(0.5) * (C(1) + error_function(a * C(0.70710678118654752440)))))

#define NAMED(operation, arity, expression) operation,
enum Operation : int64_t { OPERATIONS(NAMED) kOperations };
#undef NAMED

// How many operands an operation reads: what stands in the place of others is not looked at.
inline size_t arity_of(int64_t operation) {
#define COUNTED(operation, arity, expression) arity,
  static constexpr size_t arities[] = {OPERATIONS(COUNTED)};
#undef COUNTED
  return operation >= 0 && operation < kOperations ? arities[operation] : 2;
}

template <typename C>
using Step = void (*)(const C* a, const C* b, const C* c, C* out, int64_t n);

inline float as_bfloat(float value) {
  uint32_t bits = round_to_bfloat(value) & 0xffff0000u;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline double as_bfloat(double value) { return value; }  // refused when a program is read

// One operation on numbers.
template <int64_t operation, typename C>
INLINED C apply(C a, C b, C c = C()) {
  (void)b, (void)c;
#define CHOSEN(name, arity, expression) \
  if constexpr (operation == name) return expression;
  OPERATIONS(CHOSEN)
#undef CHOSEN
}

// By way of a few of them: processors convert vectors.
template <typename C>
void to_half(const C* a, C* out, int64_t n) {
  constexpr int64_t kFew = 64;
  Half few[kFew];
  for (int64_t i = 0; i < n; i += kFew) {
    int64_t m = std::min(kFew, n - i);
    narrow_all(a + i, few, m);
    widen_all(few, out + i, m);
  }
}

// The result may stand where an operand does: element i depends on element i only.
template <int64_t operation, typename C>
void apply_all(const C* a, const C* b, const C* c, C* out, int64_t n) {
  if constexpr (operation == kToFloat16) return to_half(a, out, n);
  _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {
    out[i] = apply<operation>(a[i], b[i], c[i]);
  }
}

#define LISTED(operation, arity, expression) apply_all<operation, C>,
template <typename C>
constexpr Step<C> kSteps[kOperations] = {OPERATIONS(LISTED)};
#undef LISTED
