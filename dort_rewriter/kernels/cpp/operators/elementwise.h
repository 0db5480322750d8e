// The operators that run a program: over one group of tensors, or several.
#pragma once

#include <algorithm>

#include "program.h"

// Over tensors that broadcast.
class Elementwise : public Program {
 public:
  static constexpr const char* name = "Elementwise";
  static constexpr size_t in_place = 16;  // the most inputs that are written
  static constexpr bool never_fails = true;

  explicit Elementwise(const Info& info) : Program(info) {}
};

// A program run over several groups of inputs, which may have other shapes: what the nodes of an
// optimizer's step have in common. The groups are computed in any order, and at the same time. The
// last inputs may be `shared`: all programs read them.
class ElementwiseList : public Program {
 public:
  static constexpr const char* name = "ElementwiseList";
  static constexpr bool never_fails = true;
  static constexpr size_t most = 2048;  // inputs, or results

  explicit ElementwiseList(const Info& info)
      : Program(info, entries(info), shared(info)), entries_(entries(info)) {}

  ONCE void compute(const Context& context) const {
    static thread_local std::vector<Entry> memory;  // too much for a stack
    static thread_local std::vector<int64_t> starts;
    if (memory.size() < entries_) memory.resize(entries_);
    starts.assign(1, 0);
    Tensors shared;
    for (size_t i = 0; i < shared_; ++i) shared.push_back(context.input(own_ * entries_ + i));
    for (size_t i = 0; i < entries_; ++i) {
      prepare(context, i, memory[i], shared.data());
      if (memory[i].size > kLargest) fail(kInvalidArgument, "sizes are too large");
      starts.push_back(starts.back() + in_lines(memory[i].size));
    }
    const Entry* entries = memory.data();  // those of this thread, for all threads
    const int64_t* from = starts.data();
    in_parts(context, from[entries_], [&](auto computed, int64_t begin, int64_t end) {
      each_of(from, entries_, begin, end, [&](size_t i, int64_t first, int64_t last) {
        run<decltype(computed)>(entries[i], first, std::min(last, entries[i].size));
      });
    });
  }

 private:
  static size_t entries(const Info& info) {
    return static_cast<size_t>(info.integer("count", 1, 1, most));
  }

  size_t entries_;
};

static const Operators<Elementwise, ElementwiseList> elementwise_operators;
