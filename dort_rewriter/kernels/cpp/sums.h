// Sums of many floats: in lanes that fit vectors, and in double from one part to the next.
#pragma once

#include <algorithm>
#include <cstdint>

constexpr int64_t kLanes = 32, kChunk = 2048;

// Return the sum of term(i) for i in 0..n. In lanes of double a mean of equal numbers is exact: what
// is left of them is zero, which a norm would multiply by the root of its epsilon. With -0.0 at the
// start the sum is that of the terms alone: -0.0 if all are.
template <typename Lane = float, typename F>
double sum_of(int64_t n, F&& term, Lane start = 0) {
  double total = start;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    int64_t end = begin + kChunk < n ? begin + kChunk : n;
    int64_t i = begin;
    if (end - begin >= kLanes) {
      Lane lanes[kLanes];
      std::fill_n(lanes, kLanes, start);
      for (; i + kLanes <= end; i += kLanes) {
        for (int64_t k = 0; k < kLanes; ++k) lanes[k] += term(i + k);
      }
      for (int64_t width = kLanes / 2; width > 0; width /= 2) {
        for (int64_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
      }
      total += lanes[0];
    }
    Lane rest = start;
    for (; i < end; ++i) rest += term(i);
    total += rest;
  }
  return total;
}

// Two sums at once, of what is read once: each(i, a, b) adds to a and b.
struct Two {
  double a = 0, b = 0;
};

template <typename F>
Two sums_of(int64_t n, F&& each, float start = 0) {
  Two total{start, start};
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    int64_t end = begin + kChunk < n ? begin + kChunk : n;
    int64_t i = begin;
    float a[kLanes], b[kLanes];
    std::fill_n(a, kLanes, start);
    std::fill_n(b, kLanes, start);
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t k = 0; k < kLanes; ++k) each(i + k, a[k], b[k]);
    }
    for (; i < end; ++i) each(i, a[0], b[0]);
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t k = 0; k < width; ++k) {
        a[k] += a[k + width];
        b[k] += b[k + width];
      }
    }
    total.a += a[0];
    total.b += b[0];
  }
  return total;
}
