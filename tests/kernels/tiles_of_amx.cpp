// The loop that multiplies in tiles of AMX, on a processor whose tiles are these functions, beside the
// loops that say what it computes. Ends with 1 where they differ.
#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

struct Tile {
  uint8_t bytes[16][64];
};
static Tile tile_of[8];
static bool configured = false;

static void configure(const void* given) {
  auto* bytes = static_cast<const uint8_t*>(given);
  configured = bytes[0] == 1 && bytes[1] == 0;  // palette, row to begin at
  for (int i = 0; i < 8; ++i) {
    uint16_t columns;
    std::memcpy(&columns, bytes + 16 + 2 * i, 2);
    configured = configured && columns == 64 && bytes[48 + i] == 16;
  }
}

static void load(int tile, const void* from, int64_t step) {
  for (int r = 0; r < 16; ++r) std::memcpy(tile_of[tile].bytes[r], static_cast<const char*>(from) + r * step, 64);
}

static void store(int tile, void* to, int64_t step) {
  for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * step, tile_of[tile].bytes[r], 64);
}

static float number(const Tile& tile, int r, int c) {
  uint32_t bits = 0;
  std::memcpy(reinterpret_cast<char*>(&bits) + 2, tile.bytes[r] + 2 * c, 2);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// As the manual of the instruction says.
static void multiply(int sums, int left, int right) {
  for (int m = 0; m < 16 && configured; ++m) {
    for (int n = 0; n < 16; ++n) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < 16; ++k) {
        even += number(tile_of[left], m, 2 * k) * number(tile_of[right], k, 2 * n);
        odd += number(tile_of[left], m, 2 * k + 1) * number(tile_of[right], k, 2 * n + 1);
      }
      std::memcpy(&sum, tile_of[sums].bytes[m] + 4 * n, 4);
      sum += even + odd;
      std::memcpy(tile_of[sums].bytes[m] + 4 * n, &sum, 4);
    }
  }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) configure(from)
#define _tile_loadd(tile, from, step) load(tile, from, step)
#define _tile_stored(tile, to, step) store(tile, to, step)
#define _tile_zero(tile) std::memset(&tile_of[tile], 0, sizeof(Tile))
#define _tile_dpbf16ps(sums, left, right) multiply(sums, left, right)
#define _tile_release() configured = false

#include "tiles.h"

template <int terms>
static int differing(int64_t count) {
  constexpr int64_t numbers = 3 * 5 * tiles::kTile;
  static uint16_t factors[4][numbers];
  uint32_t state = 1;
  for (auto& factor : factors) {
    for (uint16_t& at : factor) {
      state = state * 1664525 + 1013904223;
      at = static_cast<uint16_t>((state >> 16 & 0x80ff) | 0x3f00);
    }
  }
  const tiles::Factors of{{factors[0], factors[1]}, {factors[2], factors[3]}};
  static tiles::Block made, expected;
  std::memset(expected, 0, sizeof(expected));
  tiles::multiply_by_tiles<terms>(of, count, made);
  tiles::multiply_by_loops<terms>(of, count, expected);
  return std::memcmp(made, expected, sizeof(made)) != 0 || configured || made[0] == 0;
}

int main() {
  int wrong = 0;
  for (int64_t count = 1; count <= 5; ++count) {
    wrong += differing<1>(count) + differing<3>(count) + differing<6>(count);
  }
  wrong += !tiles::tiles_are_right();
  std::printf("%d differ\n", wrong);
  return wrong != 0;
}
