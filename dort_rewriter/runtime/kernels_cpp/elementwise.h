// Elementwise: a small program of operators of one element each, run over tensors that broadcast.
//
// The work goes tile by tile: intermediate results never leave the cache. Each instruction is five
// numbers: operator, register to write, and up to three operands, registers or inputs (input i is
// -1 - i). Sums, products, quotients and square roots round as single operators do, bit for bit.
#pragma once

#include <algorithm>
#include <cmath>

#include "functions.h"
#include "kernel.h"

enum Operation : int64_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMax,
  kMin,
  kNeg,
  kAbs,
  kSqrt,
  kReciprocal,
  kRelu,
  kSigmoid,
  kExp,
  kEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kWhere,
  kErf,
  kTanh,
  kLog,
  kNot,
  kPow,
  kOperations,
};

// How many operands an operation reads: what stands in the place of others is not looked at.
constexpr size_t arity_of(int64_t operation) {
  if (operation == kWhere) return 3;
  bool single =
      (operation >= kNeg && operation <= kExp) || (operation >= kErf && operation <= kNot);
  return single ? 1 : 2;
}

template <typename C>
using Step = void (*)(const C* a, const C* b, const C* c, C* out, int64_t n);

// The result may stand where an operand does: element i depends on element i only.
#define ELEMENTWISE(name, expression)                                         \
  template <typename C>                                                       \
  void name(const C* a, const C* b, const C* c, C* out, int64_t n) {          \
    (void)b, (void)c;                                                         \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) out[i] = expression; \
  }
ELEMENTWISE(add, a[i] + b[i])
ELEMENTWISE(subtract, a[i] - b[i])
ELEMENTWISE(multiply, a[i] * b[i])
ELEMENTWISE(divide, a[i] / b[i])
ELEMENTWISE(maximum, (a[i] > b[i] || a[i] != a[i]) ? a[i] : b[i])
ELEMENTWISE(minimum, (a[i] < b[i] || a[i] != a[i]) ? a[i] : b[i])
ELEMENTWISE(negate, -a[i])
ELEMENTWISE(absolute, std::fabs(a[i]))
ELEMENTWISE(square_root, std::sqrt(a[i]))
ELEMENTWISE(reciprocal, C(1) / a[i])
ELEMENTWISE(relu, a[i] < C(0) ? C(0) : a[i])
ELEMENTWISE(sigmoid, C(1) / (C(1) + exponential(-a[i])))
ELEMENTWISE(exp_all, exponential(a[i]))
ELEMENTWISE(equal, a[i] == b[i] ? C(1) : C(0))
ELEMENTWISE(less, a[i] < b[i] ? C(1) : C(0))
ELEMENTWISE(less_or_equal, a[i] <= b[i] ? C(1) : C(0))
ELEMENTWISE(greater, a[i] > b[i] ? C(1) : C(0))
ELEMENTWISE(greater_or_equal, a[i] >= b[i] ? C(1) : C(0))
ELEMENTWISE(choose, a[i] != C(0) ? b[i] : c[i])
ELEMENTWISE(erf_all, error_function(a[i]))
ELEMENTWISE(tanh_all, hyperbolic_tangent(a[i]))
ELEMENTWISE(log_all, logarithm(a[i]))
ELEMENTWISE(opposite, a[i] == C(0) ? C(1) : C(0))
ELEMENTWISE(power, std::pow(a[i], b[i]))
#undef ELEMENTWISE

template <typename C>
constexpr Step<C> kSteps[kOperations] = {
    add<C>,         subtract<C>,   multiply<C>,      divide<C>,  maximum<C>,
    minimum<C>,     negate<C>,     absolute<C>,      square_root<C>, reciprocal<C>,
    relu<C>,        sigmoid<C>,    exp_all<C>,       equal<C>,   less<C>,
    less_or_equal<C>, greater<C>,  greater_or_equal<C>, choose<C>,
    erf_all<C>,     tanh_all<C>,   log_all<C>,       opposite<C>, power<C>,
};

// How the elements of an input are found from those of the result.
struct Reach {
  Shape sizes;    // of the result, neighbouring dimensions merged where the input allows it
  Shape strides;  // of the input along them, 0 where it is repeated
  bool whole;   // one element after the other
  bool single;  // one element for all

  Reach() = default;
  ONCE Reach(const Shape& from, const Shape& to) {
    size_t missing = to.size() - from.size();
    Shape steps(to.size(), 0);
    int64_t stride = 1;
    for (size_t d = to.size(); d-- > missing;) {
      int64_t size = from[d - missing];
      if (size != 1) steps[d] = stride;
      stride *= size;
    }
    single = count(from) == 1;
    merge(to, steps);
  }

  // Where the elements of a tensor go when its axes change places: axis perm[d] becomes axis d.
  ONCE static Reach transposed(const Shape& shape, const Integers& perm) {
    Shape steps(shape.size(), 0);
    int64_t stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      steps[perm[d]] = stride;
      stride *= shape[perm[d]];
    }
    Reach reach;
    reach.single = false;
    reach.merge(shape, steps);
    return reach;
  }

  // Call each(where in the input, its step, number of elements) for the rows of a range.
  template <typename F>
  void rows(int64_t begin, int64_t n, F&& each) const {
    size_t rank = sizes.size();
    int64_t inner = sizes[rank - 1], step = strides[rank - 1];
    int64_t row = begin / inner, column = begin % inner;
    while (n > 0) {
      int64_t offset = 0, rest = row;
      for (size_t d = rank - 1; d-- > 1;) {
        offset += rest % sizes[d] * strides[d];
        rest /= sizes[d];
      }
      if (rank > 1) offset += rest * strides[0];  // divisions take longer than short rows
      int64_t length = std::min(n, inner - column);
      each(offset + column * step, step, length);
      n -= length;
      column = 0;
      ++row;
    }
  }

 private:
  ONCE void merge(const Shape& shape, const Shape& steps) {
    for (size_t d = shape.size(); d-- > 0;) {
      if (shape[d] == 1) continue;
      if (!sizes.empty() && steps[d] == strides.back() * sizes.back()) {
        sizes.back() *= shape[d];
      } else {
        sizes.push_back(shape[d]);
        strides.push_back(steps[d]);
      }
    }
    whole = sizes.size() <= 1 && !single;
    if (sizes.empty()) {
      sizes.push_back(1);
      strides.push_back(0);
    }
    std::reverse(sizes.begin(), sizes.end());
    std::reverse(strides.begin(), strides.end());
  }
};

ONCE inline Shape broadcast(const Tensors& inputs) {
  size_t rank = 0;
  for (const Tensor& input : inputs) rank = std::max(rank, input.shape.size());
  Shape result(rank, 1);
  for (const Tensor& input : inputs) {
    size_t missing = rank - input.shape.size();
    for (size_t d = missing; d < rank; ++d) {
      int64_t size = input.shape[d - missing];
      if (size == 1 || size == result[d]) continue;
      if (result[d] != 1) fail(kInvalidArgument, "the shapes of Elementwise do not broadcast");
      result[d] = size;
    }
  }
  return result;
}

// A truth value as ONNX Runtime stores it.
struct Truth {
  uint8_t value;
};

inline float widen(Truth truth) { return truth.value != 0 ? 1.0f : 0.0f; }

// What the operators below share: a program, and how it runs over tiles.
class Program {
 public:
  static constexpr ElementType outputs[] = {kAny};
  static constexpr bool variadic = true;

  // The first `masks` inputs are truth values: 1 and 0 to the program.
  // With `entries` it runs over so many groups of inputs, one after the other.
  ONCE Program(const Info& info, size_t masks, Integers perm, size_t entries = 1)
      : program_(info.integers("program")),
        results_(info.integers("results")),
        perm_(std::move(perm)),
        width_(info.inputs() / entries),
        masks_(masks) {
    dispatch(info.input_type(masks), [](auto, auto) {});
    if (program_.empty() || program_.size() % 5 != 0) {
      fail(kInvalidArgument, "a program is made of instructions of five numbers");
    }
    if (results_.size() * entries != info.outputs() || width_ * entries != info.inputs() ||
        width_ > kMost || results_.size() > kMost) {
      fail(kInvalidArgument, "the program is for other inputs or outputs");
    }
    std::vector<bool> written;
    for (size_t i = 0; i < program_.size(); i += 5) {
      read_instruction(&program_[i], static_cast<int64_t>(width_), written);
    }
    registers_ = static_cast<int64_t>(written.size());
    last_only_ = perm_.empty() && results_.size() == 1 &&
                 program_[program_.size() - 4] == results_[0];
    for (int64_t result : results_) {
      if (result < 0 || result >= registers_ || !written[result]) {
        fail(kInvalidArgument, "a result is no register");
      }
    }
  }

  ONCE void compute(const Context& context) const {
    Entry entry;
    prepare(context, 0, entry);
    if (entry.size == 0) return;
    dispatch(entry.inputs[masks_].type, [&](auto stored, auto computed) {
      using T = decltype(stored);
      using C = decltype(computed);
      context.parallel(entry.size, kPart, [&](int64_t begin, int64_t end) {
        run<T, C>(entry, begin, end);
      });
    });
  }

 protected:
  // What a program runs over.
  struct Entry {
    Tensors inputs;
    Few<Reach, kMost> reaches;
    Few<void*, kMost> outputs;
    Reach target;
    int64_t size;
  };

  // Find what the program runs over: of several, the one at this place.
  ONCE void prepare(const Context& context, size_t place, Entry& entry) const {
    Tensors& inputs = entry.inputs;
    inputs.resize(width_);
    for (size_t i = 0; i < width_; ++i) inputs[i] = context.input(place * width_ + i);
    Shape shape = broadcast(inputs), result = shape;
    if (!perm_.empty()) {
      if (perm_.size() != shape.size()) fail(kInvalidArgument, "the axes are not the inputs'");
      for (size_t d = 0; d < perm_.size(); ++d) result[d] = shape[perm_[d]];
    }
    size_t results = results_.size();
    entry.outputs.resize(results);
    for (size_t i = 0; i < results; ++i) {
      entry.outputs[i] = context.output(place * results + i, result);
    }
    entry.size = count(shape);
    entry.reaches.resize(0);
    for (const Tensor& input : inputs) entry.reaches.push_back(Reach(input.shape, shape));
    entry.target = perm_.empty() ? Reach() : Reach::transposed(shape, perm_);
  }

  static constexpr int64_t kTile = 512;
  static constexpr int64_t kPart = 32 * kTile;
  static constexpr int64_t kMostRegisters = 256;

  // Check an instruction, and note the register that it writes: what it reads is there already.
  ONCE static void read_instruction(int64_t* code, int64_t inputs, std::vector<bool>& written) {
    if (code[0] < 0 || code[0] >= kOperations || code[1] < 0 || code[1] >= kMostRegisters) {
      fail(kInvalidArgument, "Elementwise does not know this program");
    }
    size_t arity = arity_of(code[0]);
    for (size_t k = 0; k < 3; ++k) {
      int64_t& operand = code[2 + k];
      if (k >= arity) operand = code[2];  // something that is there
      auto registers = static_cast<int64_t>(written.size());
      if (operand >= registers || (operand >= 0 && !written[operand])) {
        fail(kInvalidArgument, "a program reads a register before it writes it");
      }
      if (operand < -inputs) {
        fail(kInvalidArgument, "the program is for other inputs or outputs");
      }
    }
    if (static_cast<size_t>(code[1]) >= written.size()) written.resize(code[1] + 1);
    written[code[1]] = true;
  }

  template <typename T, typename C>
  void run(const Entry& entry, int64_t begin, int64_t end) const {
    const Tensors& inputs = entry.inputs;
    const Few<Reach, kMost>& reaches = entry.reaches;
    const Few<void*, kMost>& outputs = entry.outputs;
    const Reach& target = entry.target;
    static thread_local std::vector<C> memory;
    size_t tiles = registers_ + inputs.size();
    if (memory.size() < tiles * kTile) memory.resize(tiles * kTile);
    C* registers = memory.data();
    C* loaded = registers + registers_ * kTile;
    Few<const C*, kMost> given(inputs.size());
    int64_t longest = std::min(kTile, end - begin);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (reaches[i].single) {
        given[i] = loaded + i * kTile;
        C value = i < masks_ ? C(widen(*inputs[i].as<Truth>())) : C(widen(*inputs[i].as<T>()));
        std::fill_n(loaded + i * kTile, longest, value);
      }
    }
    for (int64_t at = begin; at < end; at += kTile) {
      int64_t n = std::min(kTile, end - at);
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (reaches[i].single) continue;
        C* to = loaded + i * kTile;
        given[i] = i < masks_ ? load(inputs[i].as<Truth>(), reaches[i], at, n, to)
                              : load(inputs[i].as<T>(), reaches[i], at, n, to);
      }
      for (size_t i = 0; i < program_.size(); i += 5) {
        const int64_t* code = &program_[i];
        auto operand = [&](int64_t k) { return k < 0 ? given[-1 - k] : registers + k * kTile; };
        C* to = registers + code[1] * kTile;
        if constexpr (std::is_same_v<T, C>) {
          if (last_only_ && i + 5 == program_.size()) to = static_cast<T*>(outputs[0]) + at;
        }
        kSteps<C>[code[0]](operand(code[2]), operand(code[3]), operand(code[4]), to, n);
      }
      if (std::is_same_v<T, C> && last_only_) continue;
      for (size_t i = 0; i < outputs.size(); ++i) {
        const C* from = registers + results_[i] * kTile;
        T* to = static_cast<T*>(outputs[i]);
        if (perm_.empty()) {
          narrow_all(from, to + at, n);
          continue;
        }
        target.rows(at, n, [&](int64_t offset, int64_t step, int64_t length) {
          if (step == 1) {
            narrow_all(from, to + offset, length);
          } else {
            for (int64_t k = 0; k < length; ++k) narrow(from[k], to[offset + k * step]);
          }
          from += length;
        });
      }
    }
  }

  // Return where the elements of a tile are: in the input itself when they are neighbours there.
  template <typename T, typename C>
  static const C* load(const T* data, const Reach& reach, int64_t at, int64_t n, C* to) {
    if (reach.whole) {
      if constexpr (std::is_same_v<T, C>) return data + at;
      widen_all(data + at, to, n);
      return to;
    }
    C* next = to;
    reach.rows(at, n, [&](int64_t offset, int64_t step, int64_t length) {
      if (step == 1) {
        widen_all(data + offset, next, length);
      } else if (step == 0) {
        std::fill_n(next, length, C(widen(data[offset])));
      } else {
        for (int64_t i = 0; i < length; ++i) next[i] = widen(data[offset + i * step]);
      }
      next += length;
    });
    return to;
  }

  Integers program_, results_, perm_;
  size_t width_, masks_;
  int64_t registers_ = 0;
  bool last_only_ = false;  // the last instruction computes the only result, in its place
};

class Elementwise : public Program {
 public:
  static constexpr const char* name = "Elementwise";
  static constexpr ElementType inputs[] = {kAny};
  static constexpr size_t in_place = 16;  // the most inputs that are written

  explicit Elementwise(const Info& info) : Program(info, 0, {}) {}
};

// With a mask before the other inputs.
class MaskedElementwise : public Program {
 public:
  static constexpr const char* name = "MaskedElementwise";
  static constexpr ElementType inputs[] = {kBool, kAny};
  static constexpr size_t in_place = 16;

  explicit MaskedElementwise(const Info& info) : Program(info, 1, {}) {}
};

// A program run over several groups of inputs, which may have other shapes: what the nodes of an
// optimizer's step have in common. The groups are computed in any order, and at the same time.
class ElementwiseList : public Program {
 public:
  static constexpr const char* name = "ElementwiseList";
  static constexpr ElementType inputs[] = {kAny};
  static constexpr size_t in_place = 0;
  static constexpr size_t most = 2048;  // inputs, or results

  explicit ElementwiseList(const Info& info) : Program(info, 0, {}, entries(info)) {
    entries_ = entries(info);
  }

  ONCE void compute(const Context& context) const {
    static thread_local std::vector<Entry> memory;  // too much for a stack
    static thread_local std::vector<int64_t> starts;
    if (memory.size() < entries_) memory.resize(entries_);
    starts.assign(1, 0);
    for (size_t i = 0; i < entries_; ++i) {
      prepare(context, i, memory[i]);
      if (memory[i].size > INT64_MAX - starts.back()) fail(kInvalidArgument, "sizes are too large");
      starts.push_back(starts.back() + memory[i].size);
    }
    const Entry* entries = memory.data();  // those of this thread, for all threads
    const int64_t* from = starts.data();
    dispatch(entries[0].inputs[0].type, [&](auto stored, auto computed) {
      using T = decltype(stored);
      using C = decltype(computed);
      context.parallel(from[entries_], kPart, [&](int64_t begin, int64_t end) {
        size_t i = std::upper_bound(from, from + entries_ + 1, begin) - from - 1;
        for (; begin < end; ++i) {
          int64_t until = std::min(end, from[i + 1]);
          if (until > begin) run<T, C>(entries[i], begin - from[i], until - from[i]);
          begin = std::max(begin, until);
        }
      });
    });
  }

 private:
  static size_t entries(const Info& info) {
    return static_cast<size_t>(info.integer("count", 1, 1, most));
  }

  size_t entries_;
};

// With results transposed as `perm` says.
class TransposedElementwise : public Program {
 public:
  static constexpr const char* name = "TransposedElementwise";
  static constexpr ElementType inputs[] = {kAny};
  static constexpr size_t in_place = 0;  // what is written is not where it was read

  explicit TransposedElementwise(const Info& info) : Program(info, 0, info.permutation("perm")) {
    if (info.integers("perm").empty()) fail(kInvalidArgument, "there are no axes to transpose");
  }
};
