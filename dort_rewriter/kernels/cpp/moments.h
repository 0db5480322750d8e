// The mean and the variance of a row as torch's layer norm computes them, for numbers whose squares
// are beyond float: where an infinity, or NaN, comes out hangs on the order of its steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

constexpr int64_t kTorchLanes = 8;  // also where it has wider vectors: that kernel has none
constexpr int64_t kTorchChunk = 16;
// Below these no step overflows, in whatever order.
constexpr double kHugeSquares = 1e37, kHugeMean = 1e18;

struct Moments {
  float count = 0, mean = 0, squares = 0;

  void add(float x) {
    const float delta = x - mean;
    mean += delta / ++count;
    squares += delta * (x - mean);
  }

  // NOTE: nothing is left out where a count is zero: torch multiplies by it.
  void join(const Moments& other) {
    const float delta = other.mean - mean;
    take(other, delta, delta * delta * share(other) * count);
  }

  // The same in the order of newer torch's vectors.
  void join_lane(const Moments& other) {
    const float delta = other.mean - mean;
    take(other, delta, delta * count * (share(other) * delta));
  }

 private:
  float share(const Moments& other) const {
    const float all = count + other.count;
    return all == 0 ? 0 : other.count / all;
  }

  void take(const Moments& other, float delta, float between) {
    mean += share(other) * delta;
    squares += other.squares + between;
    count += other.count;
  }
};

// Return the moments of n numbers: in lanes, chunk by chunk, each two of the same length joined.
// Of 16-bit numbers torch reads two vectors in a step.
inline Moments torch_moments(const float* x, int64_t n, bool halves, bool lanes_apart) {
  const auto join = lanes_apart ? &Moments::join_lane : &Moments::join;
  const int64_t vectors = halves ? 2 : 1, width = vectors * kTorchLanes;
  const int64_t steps = n / width, chunks = (steps + kTorchChunk - 1) / kTorchChunk;
  int64_t depth = 1;
  while ((int64_t{1} << depth) < chunks) ++depth;
  Moments total;
  for (int64_t i = steps * width; i < n; ++i) total.add(x[i]);
  std::vector<Moments> lanes(kTorchLanes), levels(depth);
  for (int64_t lane = 0; lane < kTorchLanes; ++lane) {
    std::fill(levels.begin(), levels.end(), Moments());
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t until = std::min(steps, (chunk + 1) * kTorchChunk);
      for (int64_t vector = 0; vector < vectors; ++vector) {
        Moments part;
        for (int64_t step = chunk * kTorchChunk; step < until; ++step) {
          part.add(x[step * width + vector * kTorchLanes + lane]);
        }
        (levels[0].*join)(part);
      }
      int64_t mask = chunk + 1;
      for (int64_t level = 1; level < depth && (mask & 1) == 0; ++level, mask >>= 1) {
        (levels[level].*join)(levels[level - 1]);
        levels[level - 1] = Moments();
      }
    }
    for (int64_t level = 1; level < depth; ++level) (levels[0].*join)(levels[level]);
    lanes[lane] = levels[0];
  }
  for (const Moments& lane : lanes) total.join(lane);
  return total;
}
