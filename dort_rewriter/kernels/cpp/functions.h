// Functions of one float, exact to a few units in the last place, without a branch: compilers make
// vectors of loops over them. Of a double they are those of the standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "compiler.h"

#if defined(__FMA__)
INLINED float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
INLINED float fused(float a, float b, float c) { return a * b + c; }
#endif

// A polynomial of x, its coefficients from that of the highest power on.
template <typename... C>
INLINED float polynomial(float x, float highest, C... lower) {
  ((highest = fused(highest, x, lower)), ...);
  return highest;
}

INLINED float exponential(float x) {
  // e ** x = 2 ** n * e ** r with |r| <= ln(2) / 2, and the series of e ** r. Without a branch, so
  // that compilers use vectors. The sum with 3 * 2 ** 22 rounds, and leaves n in the last bits.
  constexpr float kRound = 12582912.0f, kHighest = 88.7f, kLowest = -87.3f;
  float shifted = fused(x, 1.44269504088896341f, kRound);
  float n = shifted - kRound;
  float r = fused(n, 2.12194440054690583e-4f, fused(n, -0.693359375f, x));
  float p = polynomial(r, 1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f,
                       1.0f);
  uint32_t bits;
  std::memcpy(&bits, &shifted, 4);
  bits = (bits - 0x4b400000u + 127u) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  p *= power;
  p = x > kHighest ? HUGE_VALF : p;
  return x < kLowest ? 0.0f : p;
}

INLINED double exponential(double x) { return std::exp(x); }

// The polynomials below were fitted to the functions at Chebyshev nodes, in many digits.

INLINED float error_function(float x) {
  // Near zero x times a polynomial of its square; else 1 - e ** -p(|x|), which is 1 from 4 on.
  constexpr float kSmall = 0.98f, kLargest = 4.1f;
  float size = std::fabs(x), square = x * x;
  float near = polynomial(square, 7.88249711e-05f, -0.000801885499f, 0.00518931194f, -0.0268543288f,
                          0.112835975f, -0.376126269f, 1.12837917f);
  float t = size > kLargest ? kLargest : size;
  float p = polynomial(t, 7.36347166e-08f, -3.25758788e-06f, 6.1521422e-05f, -0.000680641617f,
                       0.00504367586f, -0.0270440009f, 0.110962429f, 0.631048259f, 1.13062028f,
                       -0.000402833359f);
  float far = std::copysign(1.0f - exponential(-p), x);
  return size < kSmall ? near * x : far;
}

INLINED double error_function(double x) { return std::erf(x); }

INLINED float hyperbolic_tangent(float x) {
  constexpr float kSmall = 0.64f;
  float size = std::fabs(x), square = x * x;
  float p = polynomial(square, 0.00224834851f, -0.00830420816f, 0.0217566424f, -0.0539577393f,
                       0.133332971f, -0.333333331f);
  float near = fused(p * square, size, size);
  float far = 1.0f - 2.0f / (exponential(2.0f * size) + 1.0f);
  return std::copysign(size < kSmall ? near : far, x);  // -0.0 too
}

INLINED double hyperbolic_tangent(double x) { return std::tanh(x); }

INLINED float logarithm(float x) {
  // x = 2 ** n * (1 + m) with m around zero; tiny numbers are scaled first.
  constexpr float kTiny = 1.17549435e-38f, kScale = 33554432.0f;  // 2 ** 25
  bool tiny = x < kTiny;
  float scaled = tiny ? x * kScale : x;
  uint32_t bits;
  std::memcpy(&bits, &scaled, 4);
  bits += 0x3f800000u - 0x3f3504f3u;  // the fraction is to start at the root of a half
  auto n = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127 - (tiny ? 25 : 0));
  bits = (bits & 0x007fffffu) + 0x3f3504f3u;
  float m;
  std::memcpy(&m, &bits, 4);
  m -= 1.0f;
  float p = polynomial(m, 0.0714788565f, -0.115707074f, 0.116619029f, -0.124111305f, 0.142499097f,
                       -0.166684767f, 0.200007081f, -0.249999891f, 0.333333312f);
  float square = m * m;
  float rest = fused(p * square, m, fused(square, -0.5f, n * -2.12194440054690583e-4f));
  float result = fused(n, 0.693359375f, m + rest);
  result = x == 0.0f ? -HUGE_VALF : result;
  result = x < 0.0f ? NAN : result;
  return x < HUGE_VALF ? result : x;  // infinity and NaN
}

INLINED double logarithm(double x) { return std::log(x); }
