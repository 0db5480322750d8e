// A small program of operators of one element each, run over tensors that broadcast.
//
// The work goes tile by tile: intermediate results never leave the cache. Each instruction is five
// numbers: operator, register to write, and up to three operands, registers or inputs (input i is
// -1 - i). Sums, products, quotients and square roots round as single operators do, bit for bit.
//
// Inputs and results have a type each: float, float16 and bfloat16 are computed in float, double in
// double; truth values are 1 and 0. What is written is rounded to its type; where a program needs
// a number as rounded as the tensor that it stands for, it says so.
#pragma once

#include <algorithm>

#include "optimizer_steps.h"
#include "pairs.h"
#include "reach.h"

// A truth value as ONNX Runtime stores it.
struct Truth {
  uint8_t value;
};

inline float widen(Truth truth) { return truth.value != 0 ? 1.0f : 0.0f; }

// Call work with a value of a type that is computed in C.
template <typename C, typename F>
void by_storage(ElementType type, F&& work) {
  if (type == kBool) {
    work(Truth{});
  } else if constexpr (std::is_same_v<C, double>) {
    work(double{});
  } else if (type == kFloat16) {
    work(Half{});
  } else if (type == kBFloat16) {
    work(Bfloat{});
  } else {
    work(float{});
  }
}

// What the operators below share: a program, and how it runs over tiles.
class Program : public Operator {
 public:
  static constexpr ElementType inputs[] = {kEach};
  static constexpr ElementType outputs[] = {kEach};
  static constexpr bool variadic = true;

  // With `entries` it runs over so many groups of inputs, one after the other, and all of them read
  // the last inputs, which are `shared`.
  ONCE explicit Program(const Info& info, size_t entries = 1, size_t shared = 0)
      : Program(Width{info.inputs() < shared ? 0 : (info.inputs() - shared) / entries, shared},
                info) {
    if (results_.size() * entries != info.outputs() ||
        own_ * entries + shared != info.inputs()) {
      fail(kInvalidArgument, "the program is for other inputs or outputs");
    }
    read_types(info);
    read_program();
  }

  ONCE void compute(const Context& context) const {
    Entry entry;
    prepare(context, 0, entry, nullptr);
    if (entry.size == 0) return;
    in_parts(context, entry.size, [&](auto computed, int64_t begin, int64_t end) {
      run<decltype(computed)>(entry, begin, end);
    });
  }

 protected:
  // How many inputs a program has alone, and with others.
  struct Width {
    size_t own, shared;
  };

  // What a program runs over.
  struct Entry {
    Tensors inputs;
    Few<Reach, kMost> reaches;
    Few<void*, kMost> outputs;
    uint32_t direct;  // the results that are written by the instruction that computes them
    int64_t size;
  };
  static_assert(kMost <= 32, "a bit for each input and each result");

  // How many inputs all programs of a list read.
  static size_t shared(const Info& info) {
    return static_cast<size_t>(info.integer("shared", 0, 0, kMost));
  }

  // Over floats, which are no inputs and results of the node.
  ONCE Program(const Info& info, Width width) : Program(width, info) {
    for (size_t i = 0; i < results_.size(); ++i) made_.push_back(kFloat);
    read_program();
  }

  // Find what the program runs over: of several, the one at this place.
  ONCE void prepare(const Context& context, size_t place, Entry& entry,
                    const Tensor* shared) const {
    Tensors& inputs = entry.inputs;
    inputs.resize(width_);
    for (size_t i = 0; i < own_; ++i) inputs[i] = context.input(place * own_ + i);
    for (size_t i = 0; i < shared_; ++i) inputs[own_ + i] = shared[i];
    Shape shape = broadcast(inputs);
    size_t results = results_.size();
    entry.outputs.resize(results);
    for (size_t i = 0; i < results; ++i) {
      entry.outputs[i] = context.output(place * results + i, shape);
    }
    find_strides(entry, shape);
  }

  // Find how the program runs over what is known by now.
  ONCE void find_strides(Entry& entry, const Shape& shape) const {
    entry.size = count(shape);
    entry.reaches.resize(0);
    for (const Tensor& input : entry.inputs) entry.reaches.push_back(Reach(input.shape, shape));
    entry.direct = 0;
    for (size_t result : makes_) {
      if (result != kNone && !overwrites(entry, result)) entry.direct |= 1u << result;
    }
  }

  // Whether a result that is written early is where an input is read later: it may be written over.
  bool overwrites(const Entry& entry, size_t result) const {
    size_t width = wide_ ? sizeof(double) : sizeof(float);
    const char* to = static_cast<const char*>(entry.outputs[result]);
    for (size_t i = 0; i < width_; ++i) {
      if ((read_later_[result] >> i & 1) == 0 || entry.reaches[i].single) continue;
      const char* from = entry.inputs[i].template as<char>();
      // a truth value takes less than `width`, which only looks further
      if (from < to + entry.size * width && to < from + entry.inputs[i].size() * width) return true;
    }
    return false;
  }

  // Call work(number of the type to compute with, begin, end) on parts of 0..total.
  template <typename F>
  void in_parts(const Context& context, int64_t total, F&& work) const {
    if (wide_) {
      context.parallel(total, kPart, [&](int64_t from, int64_t to) { work(double{}, from, to); });
    } else {
      context.parallel(total, kPart, [&](int64_t from, int64_t to) { work(float{}, from, to); });
    }
  }

  // Where the parts of several tensors begin, all in one count: with a line of the cache as the
  // tensors do. Vectors that lie across two lines take a sixth longer.
  static constexpr int64_t kLine = 16;
  static constexpr int64_t kLargest = int64_t{1} << 48;
  static int64_t in_lines(int64_t size) { return (size + kLine - 1) / kLine * kLine; }

  // Call work(which, begin, end) for what of each of `n` tensors, which start `from` there in the
  // count, is between two numbers. An end may be behind that of the tensor.
  template <typename F>
  static void each_of(const int64_t* from, size_t n, int64_t begin, int64_t end, F&& work) {
    size_t i = std::upper_bound(from, from + n + 1, begin) - from - 1;
    for (; begin < end; ++i) {
      int64_t until = std::min(end, from[i + 1]);
      if (until > begin) work(i, begin - from[i], until - from[i]);
      begin = std::max(begin, until);
    }
  }

  static constexpr int64_t kTile = 512;
  static constexpr int64_t kPart = 32 * kTile;
  static constexpr int64_t kMostRegisters = 256;

  // Note the types of the results, and whether the program computes in double.
  ONCE void read_types(const Info& info) {
    bool narrow = false;
    auto take = [&](ElementType type) {
      if (type == kDouble) {
        wide_ = true;
      } else if (is_floating(type)) {
        narrow = true;
      } else {
        fail(kNotImplemented, "float, double, float16 and bfloat16 have a kernel, not type " +
                                  std::to_string(static_cast<int>(type)));
      }
    };
    for (size_t i = 0; i < info.inputs(); ++i) {
      if (ElementType type = info.input_type(i); type != kBool) take(type);
    }
    for (size_t i = 0; i < info.outputs(); ++i) {
      ElementType type = info.output_type(i);
      take(type);
      if (i < results_.size()) made_.push_back(type);
      if (type != made_[i % results_.size()]) {
        fail(kInvalidArgument, "the results of a list are of other types");
      }
    }
    if (wide_ && narrow) fail(kInvalidArgument, "a program is computed in one type");
  }

  // Check an instruction, and note the register that it writes: what it reads is there already.
  ONCE void read_instruction(int64_t* code, std::vector<bool>& written) {
    if (code[0] < 0 || code[0] >= kOperations || code[1] < 0 || code[1] >= kMostRegisters ||
        (wide_ && (code[0] == kToFloat16 || code[0] == kToBfloat16))) {
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
      if (operand < -static_cast<int64_t>(width_)) {
        fail(kInvalidArgument, "the program is for other inputs or outputs");
      }
      if (operand < 0) read_[-1 - operand] = true;
    }
    if (static_cast<size_t>(code[1]) >= written.size()) written.resize(code[1] + 1);
    written[code[1]] = true;
  }

  // Find the results that the last instruction to write their register can write in their place.
  ONCE void find_direct() {
    ElementType computed = wide_ ? kDouble : kFloat;
    for (size_t r = 0; r < results_.size(); ++r) {
      bool again = std::count(results_.begin(), results_.end(), results_[r]) > 1;
      if (made_[r] != computed || again) continue;
      for (size_t i = program_.size(); i > 0; i -= 5) {
        const int64_t* code = &program_[i - 5];
        if (code[1] == results_[r]) {
          makes_[i / 5 - 1] = r;
          break;
        }
        for (size_t k = 2; k < 5; ++k) {
          if (code[k] < 0) read_later_[r] |= 1u << (-1 - code[k]);
        }
      }
    }
  }

  // Has the inputs of the next tile fetched while this one is computed, some with each instruction:
  // a tile is over before the processor sees that they are read in a row.
  class Ahead {
   public:
    explicit Ahead(size_t instructions) : instructions_(instructions) {}

    void restart() {
      inputs_.resize(0);
      lines_ = next_ = 0;
    }
    void add(const void* data, size_t bytes) {
      inputs_.push_back({static_cast<const char*>(data), bytes / kLine});
      lines_ = std::max(lines_, bytes / kLine);
    }
    void fetch() {
      size_t most = next_ + (lines_ + instructions_ - 1) / instructions_;
      for (; next_ < std::min(most, lines_); ++next_) {
        for (const Input& input : inputs_) {
          if (next_ < input.lines) __builtin_prefetch(input.begin + next_ * kLine);
        }
      }
    }

   private:
    struct Input {
      const char* begin;
      size_t lines;
    };
    static constexpr size_t kLine = 64;
    Few<Input, kMost> inputs_;
    size_t instructions_, lines_ = 0, next_ = 0;
  };

  // Write numbers in another type: what a program does whose one instruction changes none.
  template <typename C>
  void convert(const Entry& entry, int64_t begin, int64_t end) const {
    const Tensor& input = entry.inputs[-1 - program_[2]];
    by_storage<C>(input.type, [&](auto stored) {
      by_storage<C>(made_[0], [&](auto made) {
        using To = decltype(made);
        const auto* from = input.as<decltype(stored)>();
        auto* to = static_cast<To*>(entry.outputs[0]);
        if constexpr (std::is_same_v<decltype(stored), C>) {
          if constexpr (!std::is_same_v<To, Truth>) narrow_all(from + begin, to + begin, end - begin);
        } else if constexpr (std::is_same_v<To, C>) {
          widen_all(from + begin, to + begin, end - begin);
        } else if constexpr (!std::is_same_v<To, Truth>) {
          C few[kTile];
          for (int64_t at = begin; at < end; at += kTile) {
            int64_t n = std::min(kTile, end - at);
            widen_all(from + at, few, n);
            narrow_all(few, to + at, n);
          }
        }
      });
    });
  }

  // Run the program as one loop, if there is one and all it reads and writes are floats in a row,
  // or numbers where it says so.
  bool run_loop(const Entry& entry, int64_t begin, int64_t end) const {
    if (loop_.loop == nullptr || entry.direct + 1 != uint64_t{1} << results_.size()) return false;
    const float* in[kMost];
    float* out[kMost];
    for (size_t i = 0; i < loop_.inputs.size(); ++i) {
      const Tensor& input = entry.inputs[loop_.inputs[i]];
      const Reach& reach = entry.reaches[loop_.inputs[i]];
      bool number = (loop_.loop->numbers >> i & 1) != 0;
      if (input.type != kFloat || (number ? !reach.single : !reach.whole)) return false;
      in[i] = input.as<float>() + (number ? 0 : begin);
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      out[i] = static_cast<float*>(entry.outputs[i]) + begin;
    }
    loop_.loop->run(in, out, end - begin);
    return true;
  }

  template <typename C>
  void run(const Entry& entry, int64_t begin, int64_t end) const {
    if (std::is_same_v<C, float> && run_loop(entry, begin, end)) return;
    const Tensors& inputs = entry.inputs;
    if (converts_ && entry.reaches[-1 - program_[2]].whole) return convert<C>(entry, begin, end);
    const Few<Reach, kMost>& reaches = entry.reaches;
    const Few<void*, kMost>& outputs = entry.outputs;
    static thread_local std::vector<C> memory;
    static thread_local std::vector<C*> places;  // of what the registers hold
    if (places.size() < static_cast<size_t>(registers_)) places.resize(registers_);
    size_t tiles = registers_ + inputs.size();
    constexpr size_t line = 64 / sizeof(C);  // tiles begin with a line of the cache
    if (memory.size() < tiles * kTile + line) memory.resize(tiles * kTile + line);
    size_t past = reinterpret_cast<uintptr_t>(memory.data()) % 64 / sizeof(C);
    C* registers = memory.data() + (line - past) % line;
    C* loaded = registers + registers_ * kTile;
    Few<const C*, kMost> given(inputs.size());
    int64_t longest = std::min(kTile, end - begin);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!read_[i] || !reaches[i].single) continue;
      given[i] = loaded + i * kTile;
      by_storage<C>(inputs[i].type, [&](auto stored) {
        C value = C(widen(*inputs[i].as<decltype(stored)>()));
        std::fill_n(loaded + i * kTile, longest, value);
      });
    }
    Ahead ahead(program_.size() / 5);
    for (int64_t at = begin; at < end; at += kTile) {
      int64_t n = std::min(kTile, end - at), next = std::min(kTile, end - at - n);
      ahead.restart();
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (!read_[i] || reaches[i].single) continue;
        by_storage<C>(inputs[i].type, [&](auto stored) {
          using T = decltype(stored);
          given[i] = load(inputs[i].as<T>(), reaches[i], at, n, loaded + i * kTile);
          if (reaches[i].whole) ahead.add(inputs[i].as<T>() + at + n, next * sizeof(T));
        });
      }
      for (size_t i = 0; i < program_.size(); i += 5) {
        const int64_t* code = &program_[i];
        auto operand = [&](int64_t k) { return k < 0 ? given[-1 - k] : places[k]; };
        C* to = registers + code[1] * kTile;
        size_t result = makes_[i / 5];
        if (result != kNone && (entry.direct >> result & 1) != 0) {
          to = static_cast<C*>(outputs[result]) + at;
        }
        ahead.fetch();
        step<C>(code[0])(operand(code[2]), operand(code[3]), operand(code[4]), to, n);
        places[code[1]] = to;
      }
      for (size_t i = 0; i < outputs.size(); ++i) {
        if ((entry.direct >> i & 1) != 0) continue;
        by_storage<C>(made_[i], [&](auto stored) {
          using T = decltype(stored);
          if constexpr (!std::is_same_v<T, Truth>) {
            narrow_all(places[results_[i]], static_cast<T*>(outputs[i]) + at, n);
          }
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

  // Without the types.
  ONCE Program(Width width, const Info& info)
      : program_(info.integers("program")),
        results_(info.integers("results")),
        own_(width.own),
        shared_(width.shared),
        width_(own_ + shared_),
        read_(width_),
        read_later_(results_.size()) {
    if (program_.empty() || program_.size() % 5 != 0) {
      fail(kInvalidArgument, "a program is made of instructions of five numbers");
    }
    if (width_ == 0 || width_ > kMost || results_.size() > kMost) {
      fail(kInvalidArgument, "the program is for other inputs or outputs");
    }
  }

  // Check the instructions, and find what runs them: the types are known.
  ONCE void read_program() {
    std::vector<bool> written;
    for (size_t i = 0; i < program_.size(); i += 5) read_instruction(&program_[i], written);
    registers_ = static_cast<int64_t>(written.size());
    for (int64_t result : results_) {
      if (result < 0 || result >= registers_ || !written[result]) {
        fail(kInvalidArgument, "a result is no register");
      }
    }
    if (!wide_) loop_ = formulas::find_optimizer_step(program_, results_);
    program_ = Pairs::of(std::move(program_), results_);
    makes_.assign(program_.size() / 5, kNone);
    find_direct();
    converts_ = results_.size() == 1 && program_.size() == 5 &&
                (program_[0] == kMax || program_[0] == kMin) && program_[2] == program_[3];
  }

  Integers program_, results_;
  size_t own_, shared_, width_;   // how many inputs a program has: alone, with others, in all
  std::vector<bool> read_;        // of each input, whether the program reads it
  Few<ElementType, kMost> made_;  // the type of each result
  bool wide_ = false;             // computed in double
  bool converts_ = false;         // no number is changed, but for its type
  ChosenLoop loop_;               // what runs the program at once
  int64_t registers_ = 0;
  static constexpr size_t kNone = SIZE_MAX;
  std::vector<size_t> makes_;         // of each instruction, the result that it may write in place
  std::vector<uint32_t> read_later_;  // of each result, the inputs that are read after that
};
