// Whole programs as one loop each, where somebody wrote down beforehand which ones there will be.
//
// A program is otherwise run instruction by instruction, tile by tile: it waits for memory and
// computes in turn. In one loop the processor computes while it waits. The bits are the same, but
// for what a NaN carries: the operands of sums and products may change places.
#pragma once

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "pairs.h"

// A program that is run at once: over floats in a row, and numbers.
struct Loop {
  void (*run)(const float* const* in, float* const* out, int64_t n);
  uint32_t numbers;  // a bit for each input that is one number
};

// An operation and its operands: the numbers of earlier instructions, or inputs (-1 - place).
using Instruction = std::array<int64_t, 3>;

// What a program computes, whatever registers it takes for it.
template <size_t n, size_t m>
struct Formula {
  uint32_t numbers;
  std::array<int64_t, m> results;  // the instructions that give them
  std::array<Instruction, n> code;
};

// What formulas are spelled with.
namespace formulas {

constexpr int64_t in(int64_t place) { return -1 - place; }
constexpr Instruction add(int64_t a, int64_t b) { return {kAdd, a, b}; }
constexpr Instruction sub(int64_t a, int64_t b) { return {kSub, a, b}; }
constexpr Instruction mul(int64_t a, int64_t b) { return {kMul, a, b}; }
constexpr Instruction div(int64_t a, int64_t b) { return {kDiv, a, b}; }
constexpr Instruction max(int64_t a, int64_t b) { return {kMax, a, b}; }
constexpr Instruction root(int64_t a) { return {kSqrt, a, a}; }
constexpr Instruction abs(int64_t a) { return {kAbs, a, a}; }

template <typename... P>
constexpr uint32_t numbers(P... places) {
  return ((uint32_t{1} << places) | ...);
}

template <typename... R>
constexpr std::array<int64_t, sizeof...(R)> results(R... instructions) {
  return {instructions...};
}

template <size_t m, typename... I>
constexpr Formula<sizeof...(I), m> formula(uint32_t numbers, std::array<int64_t, m> results,
                                           I... code) {
  return {numbers, results, {code...}};
}

}  // namespace formulas

// How many inputs a formula reads.
template <typename F>
constexpr size_t width_of(const F& formula) {
  int64_t least = 0;
  for (const Instruction& code : formula.code) least = std::min({least, code[1], code[2]});
  return static_cast<size_t>(-least);
}

// Whether all inputs of a formula are read, so that matching it finds them all; and are not too many.
template <typename F>
constexpr bool reads_all(const F& formula) {
  uint64_t read = 0;
  for (const Instruction& code : formula.code) {
    for (size_t k = 1; k < 3; ++k) {
      if (code[k] < 0) read |= uint64_t{1} << (-1 - code[k]);
    }
  }
  size_t width = width_of(formula);
  return width <= kMost && read + 1 == uint64_t{1} << width && formula.numbers <= read;
}

template <const auto& formula, size_t k>
void execute(const float* values, float* made) {
  constexpr Instruction code = formula.code[k];
  constexpr auto a = code[1], b = code[2];
  made[k] = apply<static_cast<Operation>(code[0])>(a < 0 ? values[a < 0 ? -1 - a : 0] : made[a],
                                                   b < 0 ? values[b < 0 ? -1 - b : 0] : made[b]);
}

template <const auto& formula, size_t... i, size_t... k, size_t... r>
void run_over(const float* const* in, float* const* out, int64_t n, std::index_sequence<i...>,
              std::index_sequence<k...>, std::index_sequence<r...>) {
  const float singles[] = {*in[i]...};  // of the others too, which costs nothing
  _Pragma("GCC ivdep") for (int64_t at = 0; at < n; ++at) {
    const float values[] = {((formula.numbers >> i & 1) != 0 ? singles[i] : in[i][at])...};
    float made[sizeof...(k)];
    (execute<formula, k>(values, made), ...);
    ((out[r][at] = made[formula.results[r]]), ...);
  }
}

template <const auto& formula>
constexpr Loop kLoop = {
    [](const float* const* in, float* const* out, int64_t n) {
      run_over<formula>(in, out, n, std::make_index_sequence<width_of(formula)>(),
                        std::make_index_sequence<formula.code.size()>(),
                        std::make_index_sequence<formula.results.size()>());
    },
    formula.numbers,
};

// A loop, and for each of its inputs the one of the program that stands for it.
struct ChosenLoop {
  const Loop* loop = nullptr;
  std::vector<int64_t> inputs;
};

// A program with instructions in the place of registers.
class Traced {
 public:
  ONCE Traced(const Integers& program, const Integers& registers) {
    std::unordered_map<int64_t, int64_t> made;  // by register
    for (size_t i = 0; i < program.size(); i += 5) {
      auto operand = [&](size_t k) {
        int64_t place = program[i + 2 + (k < arity_of(program[i]) ? k : 0)];
        return place < 0 ? place : made[place];
      };
      code_.push_back({program[i], operand(0), operand(1)});
      made[program[i + 1]] = static_cast<int64_t>(i / 5);
    }
    for (int64_t result : registers) results_.push_back(made[result]);
  }

  // Choose a loop if it computes this formula, its inputs being any of the program's: numbers that
  // are equal are one there.
  template <typename F>
  ONCE bool choose(const F& formula, const Loop& loop, ChosenLoop& chosen) const {
    if (code_.size() != formula.code.size() ||
        !std::equal(results_.begin(), results_.end(), formula.results.begin(),
                    formula.results.end())) {
      return false;
    }
    std::vector<int64_t> inputs(width_of(formula), kUnknown);
    if (!matches(formula.code.data(), 0, inputs)) return false;
    chosen = {&loop, std::move(inputs)};
    return true;
  }

 private:
  static constexpr int64_t kUnknown = -1;

  // Whether the instructions from k on are those of a formula; then all its inputs are found.
  bool matches(const Instruction* formula, size_t k, std::vector<int64_t>& inputs) const {
    if (k == code_.size()) return true;
    const Instruction &mine = code_[k], &known = formula[k];
    if (mine[0] != known[0]) return false;
    bool either_way = mine[0] == kAdd || mine[0] == kMul;
    for (size_t turned = 0; turned < (either_way ? 2 : 1); ++turned) {
      std::vector<int64_t> tried = inputs;
      if (stands_for(known[1], mine[1 + turned], tried) &&
          stands_for(known[2], mine[2 - turned], tried) && matches(formula, k + 1, tried)) {
        inputs = std::move(tried);
        return true;
      }
    }
    return false;
  }

  // Whether an operand of the program can be that of a formula, from now on if it is an input.
  static bool stands_for(int64_t known, int64_t mine, std::vector<int64_t>& inputs) {
    if (known >= 0 || mine >= 0) return known == mine;
    int64_t& found = inputs[-1 - known];
    if (found == kUnknown) found = -1 - mine;
    return found == -1 - mine;
  }

  std::vector<Instruction> code_;
  std::vector<int64_t> results_;
};

// The loop of a program among those of some formulas, if there is one.
template <const auto&... formulas>
ChosenLoop find_loop(const Integers& program, const Integers& registers) {
  static_assert((reads_all(formulas) && ...), "a formula has inputs that it does not read");
  const Traced traced(program, registers);
  ChosenLoop chosen;
  (traced.choose(formulas, kLoop<formulas>, chosen) || ...);
  return chosen;
}
