// Vectors as wide as those of the processor that is compiled for.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__FMA__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int64_t kWidest = 16;
#elif defined(__AVX__)
constexpr int64_t kWidest = 8;
#else
constexpr int64_t kWidest = 4;
#endif

typedef float WidestFloats __attribute__((vector_size(4 * kWidest)));

// A vector of the numbers from a place on, wherever that is.
template <typename V, typename T>
V load(const T* from) {
  V vector;
  std::memcpy(&vector, from, sizeof(V));
  return vector;
}

template <typename V>
V add_product(V sum, V a, V b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) return _mm512_fmadd_ps(a, b, sum);
#endif
#if defined(__FMA__)
  if constexpr (sizeof(V) == 32) return _mm256_fmadd_ps(a, b, sum);
#endif
  return a * b + sum;
}
