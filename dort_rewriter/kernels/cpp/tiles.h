// Products of matrices of float32 by parts in bfloat16, as exact as those of float32.
//
// A float32 is the sum of three bfloat16 (8 + 8 + 8 bits), so a product is the sum of nine products of
// parts, of which the three smallest are below float32's rounding. The other six are what AMX multiplies
// in tiles, in less time than MKL takes for one of float32. Three products of two parts have 16 bits.
// Without AMX loops do the same, for tests.
//
// NOTE: AMX takes denormals for zero, and the parts of an infinity are NaN: `Range::fits` says which
// factors are multiplied as exactly as in float32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "products.h"
#include "turn.h"

// NO_TILES is for assemblers that do not know AMX: those of binutils before 2.35.
#if defined(__AVX512F__) && defined(__linux__) && !defined(NO_TILES) && \
    (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define TILES_OF_AMX 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tiles {

constexpr int64_t kRows = 16, kDepth = 32;  // of a tile of the left factor, columns and rows of the right one
constexpr int64_t kTile = kRows * kDepth;   // numbers of 16 bits
constexpr int64_t kBlock = 2 * kRows;       // rows and columns of a result that are made at once
constexpr int64_t kSummed = 16;             // tiles in a row that are summed before that is added to a sum

// How many pieces of a size hold so many.
constexpr int64_t tiles_for(int64_t n, int64_t of) { return (n + of - 1) / of; }
// The parts of a number, by how many products of them are summed.
constexpr int parts_of(int terms) { return terms == 6 ? 3 : terms == 3 ? 2 : 1; }

// A factor in memory: rows that are `step` apart, or columns.
struct Matrix {
  const float* data;
  int64_t step;
  bool turned;
};

// How large and how small the numbers of a factor are, zeros left out.
struct Range {
  uint32_t most = 0, least = UINT32_MAX;  // bits of a positive float; one less

  INLINED void take(uint32_t bits) {
    const uint32_t size = bits & 0x7fffffff;
    most = std::max(most, size), least = std::min(least, size - 1);
  }
  void join(const Range& other) {
    most = std::max(most, other.most), least = std::min(least, other.least);
  }
  // The exponents of the smallest number and the largest.
  int low() const { return least == UINT32_MAX ? 0 : static_cast<int>((least + 1) >> 23) - 127; }
  int high() const { return static_cast<int>(most >> 23) - 127; }

  // Whether the parts of these numbers are exact, no sum of products is infinite, and what AMX takes
  // for zero is less than a rounding.
  static bool fits(const Range& a, const Range& b) {
    return std::max(a.high(), b.high()) < 126 && a.high() + b.high() <= 94 &&
           std::min(a.low(), b.low()) >= -100 && a.low() + b.low() >= -96;
  }
};

// Copy rows by columns of a factor to where all of a tile's are, zeros where there are none.
template <int64_t width>
void copy(const Matrix& from, int64_t i, int64_t rows, int64_t j, int64_t columns, float* to) {
  if (rows * columns < kTile) std::fill_n(to, kTile, 0.0f);
  if (!from.turned) {
    for (int64_t r = 0; r < rows; ++r) std::copy_n(from.data + (i + r) * from.step + j, columns, to + r * width);
    return;
  }
  const float* data = from.data + j * from.step + i;
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t r = 0; r < whole_rows; r += 8) {
    for (int64_t c = 0; c < whole_columns; c += 8) {
      turn(data + c * from.step + r, from.step, to + r * width + c, width);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c) {
      to[r * width + c] = data[c * from.step + r];
    }
  }
}

// The first part of a number; the number becomes what is left of it.
INLINED uint32_t take_part(float& value) {
  const uint32_t part = round_to_bfloat(value) & 0xffff0000;
  float rounded;
  std::memcpy(&rounded, &part, 4);
  value -= rounded;
  return part;
}

// See how large and small the numbers of a tile are.
inline void look(const float* tile, Range& range) {
  Range found;
#pragma GCC ivdep
  for (int64_t i = 0; i < kTile; ++i) {
    uint32_t bits;
    std::memcpy(&bits, tile + i, 4);
    found.take(bits);
  }
  range.join(found);
}

// Lay out rows of the left factor: for each tile in a row its parts, row after row.
template <int parts>
ONCE void lay_left(const Matrix& a, int64_t i, int64_t rows, int64_t k, uint16_t* to, Range& range) {
  alignas(64) float tile[kTile];
  for (int64_t j = 0; j < k; j += kDepth, to += parts * kTile) {
    copy<kDepth>(a, i, rows, j, std::min(kDepth, k - j), tile);
    look(tile, range);
    for (int part = 0; part < parts; ++part) {
      uint16_t* out = to + part * kTile;
#pragma GCC ivdep
      for (int64_t at = 0; at < kTile; ++at) out[at] = static_cast<uint16_t>(take_part(tile[at]) >> 16);
    }
  }
}

// Lay out columns of the right factor: pairs of rows, the numbers of a pair side by side.
template <int parts>
ONCE void lay_right(const Matrix& b, int64_t j, int64_t columns, int64_t k, uint16_t* to, Range& range) {
  alignas(64) float tile[kTile];
  for (int64_t i = 0; i < k; i += kDepth, to += parts * kTile) {
    copy<kRows>(b, i, std::min(kDepth, k - i), j, columns, tile);
    look(tile, range);
    for (int part = 0; part < parts; ++part) {
      uint32_t out[kRows];
      for (int64_t pair = 0; pair < kDepth / 2; ++pair) {
        float *first = tile + 2 * pair * kRows, *second = first + kRows;
#pragma GCC ivdep
        for (int64_t c = 0; c < kRows; ++c) out[c] = take_part(first[c]) >> 16 | take_part(second[c]);
        std::memcpy(to + part * kTile + pair * 2 * kRows, out, sizeof(out));
      }
    }
  }
}

// Two rows and two columns of tiles, of which a block of a result is made; the second ones may be the
// first ones again.
struct Factors {
  const uint16_t *left[2], *right[2];
};

using Block = float[kBlock * kBlock];

// sums += left right, of one tile each, in the order in which AMX adds up.
inline void add_by_loops(const uint16_t* left, const uint16_t* right, float* sums) {
  for (int64_t r = 0; r < kRows; ++r) {
    float even[kRows] = {}, odd[kRows] = {};
    for (int64_t pair = 0; pair < kDepth / 2; ++pair) {
      const float first = widen(Bfloat{left[r * kDepth + 2 * pair]});
      const float second = widen(Bfloat{left[r * kDepth + 2 * pair + 1]});
      const uint16_t* b = right + pair * 2 * kRows;
      for (int64_t c = 0; c < kRows; ++c) {  // products of eight bits each are exact
        even[c] += first * widen(Bfloat{b[2 * c]});
        odd[c] += second * widen(Bfloat{b[2 * c + 1]});
      }
    }
    for (int64_t c = 0; c < kRows; ++c) sums[r * kBlock + c] += even[c] + odd[c];
  }
}

// The products of parts in the order in which they are added up: the largest one last, and so that one
// factor is the same as before.
template <int terms, typename F>
void each_term(F&& work) {
  if constexpr (terms == 6) work(2, 0), work(1, 0), work(1, 1), work(0, 1), work(0, 2);
  if constexpr (terms == 3) work(1, 0), work(0, 1);
  work(0, 0);
}

template <int terms>
void multiply_by_loops(const Factors& of, int64_t count, Block& sums) {
  constexpr int64_t step = parts_of(terms) * kTile;
  for (int64_t k = 0; k < count; ++k) {
    each_term<terms>([&](int left, int right) {
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) {
          add_by_loops(of.left[i] + k * step + left * kTile, of.right[j] + k * step + right * kTile,
                       sums + i * kRows * kBlock + j * kRows);
        }
      }
    });
  }
}

#if TILES_OF_AMX

#define OF_AMX __attribute__((target("amx-tile,amx-bf16"), noinline))

// Eight tiles of 16 rows of 64 bytes: four of a result, two of each factor.
struct alignas(64) Configuration {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The same as by loops.
template <int terms>
OF_AMX void multiply_by_tiles(const Factors& of, int64_t count, Block& sums) {
  static const Configuration configuration;
  _tile_loadconfig(&configuration);  // at each entry, for kernels of torch release the tiles
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
#define LEFT(part)                         \
  _tile_loadd(4, left + (part) * kTile, 64); \
  _tile_loadd(5, lower + (part) * kTile, 64);
#define RIGHT(part)                         \
  _tile_loadd(6, right + (part) * kTile, 64); \
  _tile_loadd(7, farther + (part) * kTile, 64);
#define MULTIPLY            \
  _tile_dpbf16ps(0, 4, 6); \
  _tile_dpbf16ps(1, 4, 7); \
  _tile_dpbf16ps(2, 5, 6); \
  _tile_dpbf16ps(3, 5, 7);
  const uint16_t *left = of.left[0], *lower = of.left[1], *right = of.right[0], *farther = of.right[1];
  for (int64_t k = 0; k < count; ++k) {
    if constexpr (terms == 6) {
      LEFT(2) RIGHT(0) MULTIPLY LEFT(1) MULTIPLY RIGHT(1) MULTIPLY LEFT(0) MULTIPLY RIGHT(2) MULTIPLY RIGHT(0) MULTIPLY
    } else if constexpr (terms == 3) {
      LEFT(1) RIGHT(0) MULTIPLY LEFT(0) RIGHT(1) MULTIPLY RIGHT(0) MULTIPLY
    } else {
      LEFT(0) RIGHT(0) MULTIPLY
    }
    constexpr int64_t step = parts_of(terms) * kTile;
    left += step, lower += step, right += step, farther += step;
  }
#undef LEFT
#undef RIGHT
#undef MULTIPLY
  constexpr int64_t bytes = kBlock * sizeof(float);
  float* below = sums + kRows * kBlock;
  _tile_stored(0, sums, bytes);
  _tile_stored(1, sums + kRows, bytes);
  _tile_stored(2, below, bytes);
  _tile_stored(3, below + kRows, bytes);
  _tile_release();
}

#undef OF_AMX

// Whether the system lets this process use the tiles of its processor.
inline bool may_use_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTilesOfBfloat = 1u << 22, kTiles = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTilesOfBfloat) || !(d & kTiles)) return false;
  constexpr long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
}

// Whether tiles compute what loops compute: a processor's flags alone are not enough.
inline bool tiles_are_right() {
  alignas(64) uint16_t factors[4][3 * 2 * kTile];
  uint32_t state = 1;
  for (auto& factor : factors) {
    for (uint16_t& number : factor) {
      state = state * 1664525 + 1013904223;
      const float value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
      number = static_cast<uint16_t>(round_to_bfloat(value) >> 16);
    }
  }
  const Factors of{{factors[0], factors[1]}, {factors[2], factors[3]}};
  alignas(64) Block made{}, expected{};
  multiply_by_tiles<6>(of, 2, made);
  multiply_by_loops<6>(of, 2, expected);
  for (int64_t i = 0; i < kBlock * kBlock; ++i) {
    if (!(std::fabs(made[i] - expected[i]) < 1e-4f)) return false;
  }
  return true;
}

#endif

inline bool has_tiles() {
#if TILES_OF_AMX
  static const bool found = may_use_tiles() && tiles_are_right();
  return found;
#else
  return false;
#endif
}

// The block of a result that is made of tiles, so many in a row.
template <int terms>
void multiply(const Factors& of, int64_t count, Block& sums) {
#if TILES_OF_AMX
  if (has_tiles()) return multiply_by_tiles<terms>(of, count, sums);
#endif
  std::memset(sums, 0, sizeof(sums));
  multiply_by_loops<terms>(of, count, sums);
}

// The same, by some tiles after others, so that no sum has more roundings than one of float32.
template <int terms>
ONCE void multiply_all(Factors of, int64_t count, Block& sums) {
  constexpr int64_t step = kSummed * parts_of(terms) * kTile;
  alignas(64) Block some;
  for (int64_t k = 0; k < count; k += kSummed) {
    multiply<terms>(of, std::min(kSummed, count - k), k == 0 ? sums : some);
    for (int64_t i = 0; k > 0 && i < kBlock * kBlock; ++i) sums[i] += some[i];
    for (int h = 0; h < 2 && k + kSummed < count; ++h) of.left[h] += step, of.right[h] += step;
  }
}

}  // namespace tiles
