// ScatterZeros: updates added to (or written into) zeros of a given shape, as ScatterND does.
#pragma once

#include "kernel.h"

class ScatterZeros : public Operator {
 public:
  static constexpr const char* name = "ScatterZeros";
  static constexpr ElementType inputs[] = {kInt64, kInt64, kAny};  // shape, indices, updates
  static constexpr ElementType outputs[] = {kAny};

  explicit ScatterZeros(const Info& info) : add_(info.flag("add", false)) {
    dispatch(info.input_type(2), [](auto, auto) {});
  }

  void compute(const Context& context) const {
    Tensor target = context.input(0), indices = context.input(1), updates = context.input(2);
    Shape shape = target.sizes();
    if (indices.shape.empty() || static_cast<size_t>(indices.shape.back()) > shape.size()) {
      fail(kInvalidArgument, "the indices of ScatterZeros have more columns than dimensions");
    }
    int64_t depth = indices.shape.back();
    int64_t places = count(indices.shape.begin(), indices.shape.end() - 1);
    int64_t length = count(shape.begin() + depth, shape.end());
    if (updates.size() != times(places, length)) {
      fail(kInvalidArgument, "the updates of ScatterZeros do not fit its indices");
    }
    if (length == 0) places = 0;  // there is no element to write, and no limit to the places
    std::vector<int64_t> starts(places);
    for (int64_t i = 0; i < places; ++i) {
      starts[i] = start(shape, indices.as<int64_t>() + i * depth, depth) * length;
    }
    void* output = context.output(0, shape);
    dispatch(updates.type, [&](auto stored, auto computed) {
      using T = decltype(stored);
      using C = decltype(computed);
      T* to = static_cast<T*>(output);
      if (count(shape) == 0) return;
      std::memset(static_cast<void*>(to), 0, count(shape) * sizeof(T));
      for (int64_t i = 0; i < places; ++i) {
        const T* from = updates.as<T>() + i * length;
        T* row = to + starts[i];
        if (add_) {
          for (int64_t k = 0; k < length; ++k) narrow(C(widen(row[k])) + C(widen(from[k])), row[k]);
        } else {
          std::memcpy(static_cast<void*>(row), from, length * sizeof(T));
        }
      }
    });
  }

 private:
  static int64_t start(const Shape& shape, const int64_t* index, int64_t depth) {
    int64_t place = 0;
    for (int64_t d = 0; d < depth; ++d) {
      int64_t i = index[d] < 0 ? index[d] + shape[d] : index[d];
      if (i < 0 || i >= shape[d]) fail(kInvalidArgument, "an index of ScatterZeros is outside");
      place = place * shape[d] + i;
    }
    return place;
  }

  bool add_;
};

static const Operators<ScatterZeros> scatter_operators;
