// float16 and bfloat16: stored in 16 bits, computed in float.
#pragma once

#include <cstdint>
#include <cstring>

#include "compiler.h"

#if defined(__F16C__) || defined(__AVX512BW__)
#include <immintrin.h>
#endif

struct Half {
  uint16_t bits;
};

// The upper half of a float.
struct Bfloat {
  uint16_t bits;
};

INLINED float widen(float value) { return value; }
INLINED double widen(double value) { return value; }
INLINED void narrow(float value, float& to) { to = value; }
INLINED void narrow(double value, double& to) { to = value; }

INLINED float widen(Bfloat half) {
  uint32_t bits = static_cast<uint32_t>(half.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// The bits of a float whose upper half is the nearest bfloat16, ties to even; NaN stays one.
//
// NOTE: the instruction of AVX512_BF16 takes tiny numbers for zero, which torch does not.
INLINED uint32_t round_to_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded;
}

INLINED void narrow(float value, Bfloat& to) {
  to.bits = static_cast<uint16_t>(round_to_bfloat(value) >> 16);
}

#if defined(__F16C__)

INLINED float widen(Half half) { return _cvtsh_ss(half.bits); }
INLINED void narrow(float value, Half& to) { to.bits = _cvtss_sh(value, 0); }

#else

INLINED float widen(Half half) {
  uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000) << 16;
  uint32_t magnitude = static_cast<uint32_t>(half.bits & 0x7fff) << 13;
  float value;
  if (magnitude >= 0x0f800000) {  // infinities and NaN
    magnitude |= 0x7f800000;
    std::memcpy(&value, &magnitude, 4);
  } else {  // the exponent is moved by a product, exact also for small numbers
    std::memcpy(&value, &magnitude, 4);
    value *= 5.192296858534828e+33f;  // 2 ** 112
  }
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits |= sign;
  std::memcpy(&value, &bits, 4);
  return value;
}

INLINED void narrow(float value, Half& to) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint32_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  uint32_t result;
  if (bits > 0x7f800000) {
    result = 0x7e00;
  } else if (bits >= 0x477ff000) {  // rounds to infinity
    result = 0x7c00;
  } else if (bits < 0x38800000) {  // small: the unit of the sum is that of the smallest halves
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&result, &magnitude, 4);
    result -= 0x3f000000;
  } else {  // to the nearest, ties to even
    result = (bits + 0xfff + ((bits >> 13) & 1) - 0x38000000) >> 13;
  }
  to.bits = static_cast<uint16_t>(result | sign);
}

#endif

template <typename T, typename C>
void widen_all(const T* from, C* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}

template <typename C, typename T>
void narrow_all(const C* from, T* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) narrow(from[i], to[i]);
}

#if defined(__AVX512BW__)

// As round_to_bfloat does: what compilers make of it takes one and a half times as long.
inline void narrow_all(const float* from, Bfloat* to, int64_t n) {
  const __m512i unit = _mm512_set1_epi32(1), below = _mm512_set1_epi32(0x7fff);
  const __m512i quiet = _mm512_set1_epi32(0x400000);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 values = _mm512_loadu_ps(from + i);
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), unit);
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, below), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, quiet);
    __m256i upper = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), upper);
  }
  for (; i < n; ++i) narrow(from[i], to[i]);
}

#endif

#if defined(__F16C__)

inline void widen_all(const Half* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(bits));
  }
  for (; i < n; ++i) to[i] = widen(from[i]);
}

inline void narrow_all(const float* from, Half* to, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bits);
  }
  for (; i < n; ++i) narrow(from[i], to[i]);
}

#endif
