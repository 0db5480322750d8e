// A list of programs whose tensors are no inputs and results of the node: it is given addresses.
//
// ONNX Runtime takes longer to pass a tensor on than an optimizer needs for a small one. What a step
// reads and writes is memory of arguments; where it is comes as one tensor of numbers.
#pragma once

#include <random>

#include "program.h"

// What a node has to say that asks for addresses: a number that no file can know. Whoever writes it
// is this process, which knows what it feeds.
inline int64_t key_of_addresses() {
  static const int64_t key = [] {
    std::random_device source;
    return static_cast<int64_t>(uint64_t{source()} << 32 | source());
  }();
  return key;
}

// Inputs: all addresses of the model; of each program in turn the tensors that have none; those
// that all programs share. Results: of each program in turn those that have no address, which are
// single numbers; and one that only says that the node is done. All are floats.
//
// Attributes: `program`, `results`, `count` and `shared` as those of a list; `sizes`, how many
// elements each program runs over; how many inputs are its `own`, which of these have addresses
// (`at`) and which are single numbers (`single`); which results have addresses (`to`); the place of
// the `first` address. Those of a program stand together, inputs first.
class ElementwiseListAt : public Program {
 public:
  static constexpr const char* name = "ElementwiseListAt";
  static constexpr size_t most = 2048;  // inputs, or results

  explicit ElementwiseListAt(const Info& info)
      : Program(info, Width{own(info), shared(info)}),
        count_(static_cast<size_t>(info.integer("count", 1, 1, most))),
        first_(static_cast<size_t>(info.integer("first", 0, 0, INT32_MAX))),
        sizes_(info.integers("sizes")),
        at_(places(info, "at", own_)),
        single_(places(info, "single", own_)),
        to_(places(info, "to", results_.size())) {
    if (info.integer("key", 0) != key_of_addresses()) {
      fail(kInvalidArgument, "addresses are taken from the process that made them only");
    }
    given_ = own_ - std::count(at_.begin(), at_.end(), true);
    made_here_ = results_.size() - std::count(to_.begin(), to_.end(), true);
    if (info.inputs() != 1 + count_ * given_ + shared_ ||
        info.outputs() != count_ * made_here_ + 1 || sizes_.size() != count_) {
      fail(kInvalidArgument, "the program is for other inputs or outputs");
    }
    check_types(info);
    starts_.push_back(0);
    for (int64_t size : sizes_) {
      if (size < 0 || size > kLargest || (made_here_ > 0 && size != 1)) {
        fail(kInvalidArgument, "a size is not one of this list");
      }
      starts_.push_back(starts_.back() + in_lines(size));
    }
    by_loop_ = loop_.loop != nullptr;
    for (size_t i = 0; by_loop_ && i < loop_.inputs.size(); ++i) {
      by_loop_ = (loop_.loop->numbers >> i & 1) == is_single(loop_.inputs[i]);
    }
  }

  ONCE void compute(const Context& context) const {
    static thread_local std::vector<void*> memory;
    find(context, memory);
    const void* const* table = memory.data();  // that of this thread, for all threads
    context.parallel(starts_.back(), kPart, [&](int64_t begin, int64_t end) {
      each_of(starts_.data(), count_, begin, end, [&](size_t i, int64_t first, int64_t last) {
        run_one(table + i * columns(), sizes_[i], first, std::min(last, sizes_[i]));
      });
    });
  }

 private:
  static size_t own(const Info& info) {
    return static_cast<size_t>(info.integer("own", 0, 0, kMost));
  }

  // Which of so many places an attribute names.
  static std::vector<bool> places(const Info& info, const char* name, size_t most) {
    std::vector<bool> found(most);
    for (int64_t place : info.integers(name)) {
      if (place < 0 || place >= static_cast<int64_t>(most)) {
        fail(kInvalidArgument, std::string("the attribute ") + name + " names no place");
      }
      found[place] = true;
    }
    return found;
  }

  ONCE void check_types(const Info& info) const {
    if (info.input_type(0) != kInt64) fail(kInvalidArgument, "addresses are integers");
    for (size_t i = 1; i < info.inputs(); ++i) {
      if (info.input_type(i) != kFloat) fail(kNotImplemented, "lists of addresses are of floats");
    }
    for (size_t i = 0; i < info.outputs(); ++i) {
      if (info.output_type(i) != kFloat) fail(kNotImplemented, "lists of addresses are of floats");
    }
  }

  bool is_single(int64_t input) const {
    return input >= static_cast<int64_t>(own_) || single_[input];
  }

  size_t columns() const { return width_ + results_.size(); }

  // Where everything is, program by program: its inputs, then its results.
  ONCE void find(const Context& context, std::vector<void*>& table) const {
    table.resize(count_ * columns());
    Tensor addresses = context.input(0);
    size_t here = own_ - given_ + results_.size() - made_here_;
    if (addresses.size() < static_cast<int64_t>(first_ + count_ * here)) {
      fail(kInvalidArgument, "there are too few addresses");
    }
    const int64_t* next = addresses.as<int64_t>() + first_;
    auto next_address = [&](int64_t size) {
      void* address = reinterpret_cast<void*>(*next++);
      if (address == nullptr && size > 0) fail(kInvalidArgument, "an address is missing");
      return address;
    };
    size_t input = 1, output = 0;
    Few<void*, kMost> shared;
    for (size_t i = 0; i < shared_; ++i) {
      shared.push_back(tensor(context, 1 + count_ * given_ + i, 1));
    }
    void** to = table.data();
    for (size_t k = 0; k < count_; ++k) {
      for (size_t i = 0; i < own_; ++i) {
        int64_t size = single_[i] ? 1 : sizes_[k];
        *to++ = at_[i] ? next_address(size) : tensor(context, input++, size);
      }
      to = std::copy(shared.begin(), shared.end(), to);
      for (size_t i = 0; i < results_.size(); ++i) {
        *to++ = to_[i] ? next_address(sizes_[k]) : context.output(output++, {});
      }
    }
    *static_cast<float*>(context.output(output, {})) = 1;
  }

  static void* tensor(const Context& context, size_t index, int64_t size) {
    Tensor found = context.input(index);
    if (found.size() != size) fail(kInvalidArgument, "a tensor is not of the size of its list");
    return found.data;
  }

  ONCE void run_one(const void* const* row, int64_t size, int64_t begin, int64_t end) const {
    if (by_loop_) {
      const float* in[kMost];
      float* out[kMost];
      for (size_t i = 0; i < loop_.inputs.size(); ++i) {
        in[i] = static_cast<const float*>(row[loop_.inputs[i]]);
        if ((loop_.loop->numbers >> i & 1) == 0) in[i] += begin;
      }
      for (size_t i = 0; i < results_.size(); ++i) {
        out[i] = static_cast<float*>(const_cast<void*>(row[width_ + i])) + begin;
      }
      loop_.loop->run(in, out, end - begin);
      return;
    }
    Entry entry;
    Shape whole(1, size);
    entry.inputs.resize(width_);
    for (size_t i = 0; i < width_; ++i) {
      entry.inputs[i] = {kFloat, is_single(static_cast<int64_t>(i)) ? Shape() : whole,
                         const_cast<void*>(row[i])};
    }
    entry.outputs.resize(results_.size());
    for (size_t i = 0; i < results_.size(); ++i) {
      entry.outputs[i] = const_cast<void*>(row[width_ + i]);
    }
    find_strides(entry, whole);
    run<float>(entry, begin, end);
  }

  size_t count_, first_;
  Integers sizes_, starts_;  // of the programs
  std::vector<bool> at_, single_, to_;
  size_t given_ = 0, made_here_ = 0;  // inputs and results of a program that have no address
  bool by_loop_ = false;
};

static const Operators<ElementwiseListAt> elementwise_at_operators;
