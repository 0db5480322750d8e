// Blocks of matrices turned.
#pragma once

#include "half.h"

// Exchange the rows and columns of eight by eight numbers.
#if defined(__AVX2__) && defined(__F16C__)

inline __m256 eight(const float* from) { return _mm256_loadu_ps(from); }
inline __m256 eight(const Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline __m256 eight(const Bfloat* from) {
  __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline void store(__m256 values, float* to) { _mm256_storeu_ps(to, values); }
inline void store(__m256 values, Half* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, 0));
}
// As round_to_bfloat does.
inline void store(__m256 values, Bfloat* to) {
  __m256i bits = _mm256_castps_si256(values);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}

template <typename In, typename Out>
void turn(const In* from, int64_t next_from, Out* to, int64_t next_to) {
  __m256 rows[8], pairs[8], fours[8];
  for (int k = 0; k < 8; ++k) rows[k] = eight(from + k * next_from);
  for (int k = 0; k < 8; k += 2) {
    pairs[k] = _mm256_unpacklo_ps(rows[k], rows[k + 1]);
    pairs[k + 1] = _mm256_unpackhi_ps(rows[k], rows[k + 1]);
  }
  for (int k = 0; k < 8; k += 4) {
    for (int h = 0; h < 2; ++h) {
      fours[k + 2 * h] = _mm256_shuffle_ps(pairs[k + h], pairs[k + h + 2], 0x44);
      fours[k + 2 * h + 1] = _mm256_shuffle_ps(pairs[k + h], pairs[k + h + 2], 0xee);
    }
  }
  for (int k = 0; k < 4; ++k) {
    store(_mm256_permute2f128_ps(fours[k], fours[k + 4], 0x20), to + k * next_to);
    store(_mm256_permute2f128_ps(fours[k], fours[k + 4], 0x31), to + (k + 4) * next_to);
  }
}

#else

template <typename In, typename Out>
void turn(const In* from, int64_t next_from, Out* to, int64_t next_to) {
  for (int i = 0; i < 8; ++i) {
    for (int k = 0; k < 8; ++k) {
      float value = widen(from[i + k * next_from]);
      narrow(value, to[i * next_to + k]);
    }
  }
}

#endif
