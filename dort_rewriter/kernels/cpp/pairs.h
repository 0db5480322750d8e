// Instructions of a program in pairs: what the first gives is read by the second alone, and is
// never written down. Each rounds as it does by itself.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "operations.h"
#include "tensors.h"

// Second instructions: kLeft has the first one's result on its left, kRight on its right.
enum Side : size_t { kLeft, kRight };

constexpr std::array<Operation, 5> kFirstOfPair = {kAdd, kSub, kMul, kDiv, kSqrt};
constexpr std::array<std::pair<Operation, Side>, 6> kSecondOfPair = {{
    {kAdd, kLeft},
    {kMul, kLeft},
    {kSub, kLeft},
    {kSub, kRight},
    {kDiv, kLeft},
    {kDiv, kRight},
}};
constexpr size_t kPairs = kFirstOfPair.size() * kSecondOfPair.size();

template <typename C, size_t pair>
void both(const C* a, const C* b, const C* c, C* out, int64_t n) {
  constexpr Operation first = kFirstOfPair[pair / kSecondOfPair.size()];
  constexpr auto second = kSecondOfPair[pair % kSecondOfPair.size()];
  (void)b;
  _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {
    C x = apply<first>(a[i], b[i]);
    out[i] = second.second == kLeft ? apply<second.first>(x, c[i]) : apply<second.first>(c[i], x);
  }
}

template <typename C, size_t... i>
constexpr std::array<Step<C>, kPairs> steps_of_pairs(std::index_sequence<i...>) {
  return {both<C, i>...};
}

// What runs an instruction: one of the operations, or a pair, whose numbers follow theirs.
template <typename C>
Step<C> step(int64_t code) {
  static constexpr auto kPairSteps = steps_of_pairs<C>(std::make_index_sequence<kPairs>());
  return code < kOperations ? kSteps<C>[code] : kPairSteps[code - kOperations];
}

// The number of a pair; -1 when there is none.
inline int64_t pair_of(int64_t first, int64_t second, Side side) {
  if (second == kAdd || second == kMul) side = kLeft;  // either way
  for (size_t i = 0; i < kPairs; ++i) {
    auto [operation, at] = kSecondOfPair[i % kSecondOfPair.size()];
    if (kFirstOfPair[i / kSecondOfPair.size()] == first && operation == second && at == side) {
      return kOperations + static_cast<int64_t>(i);
    }
  }
  return -1;
}

// A program, instructions of five numbers, with as many of them in pairs as are found one by one.
class Pairs {
 public:
  ONCE static Integers of(Integers program, const Integers& results) {
    Pairs pairs(std::move(program), results);
    if (pairs.size() > kLong) return std::move(pairs.program_);
    for (size_t second = 1; second < pairs.size(); ++second) {
      for (Side side : {kLeft, kRight}) {
        if (pairs.join(second, side)) {
          --second;
          break;
        }
      }
    }
    return std::move(pairs.program_);
  }

 private:
  Pairs(Integers program, const Integers& results)
      : program_(std::move(program)), results_(results) {}

  static constexpr size_t kLong = 2048;  // instructions, each compared with all others

  size_t size() const { return program_.size() / 5; }
  int64_t* at(size_t i) { return &program_[5 * i]; }
  bool writes(size_t i, int64_t value) { return at(i)[1] == value; }
  bool reads(size_t i, int64_t value) { return std::count(at(i) + 2, at(i) + 5, value) != 0; }

  // Let an instruction do what made its operand at this side as well.
  ONCE bool join(size_t second, Side side) {
    int64_t* code = at(second);
    int64_t value = code[2 + side], other = code[3 - side];
    if (value < 0 || value == other) return false;
    size_t first = second;
    while (first > 0 && !writes(first - 1, value)) --first;
    if (first-- == 0) return false;
    int64_t pair = pair_of(at(first)[0], code[0], side);
    if (pair < 0 || !is_over(second, value)) return false;
    for (size_t i = first + 1; i < second; ++i) {
      if (reads(i, value) || reads(first, at(i)[1])) return false;
    }
    const int64_t joined[] = {pair, code[1], at(first)[2], at(first)[3], other};
    std::copy_n(joined, 5, code);
    program_.erase(program_.begin() + 5 * first, program_.begin() + 5 * (first + 1));
    return true;
  }

  // Whether a register is dead after this instruction: written again before it is read.
  bool is_over(size_t reader, int64_t value) {
    for (size_t i = reader; i < size(); ++i) {
      if (i > reader && reads(i, value)) return false;
      if (writes(i, value)) return true;
    }
    return std::count(results_.begin(), results_.end(), value) == 0;
  }

  Integers program_;
  const Integers& results_;
};
