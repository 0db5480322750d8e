// WriteRows: a tensor with some rows along an axis replaced, the last of those with one index kept.
//
// The result may stand where the tensor is: then only the rows are written. With the attribute
// `wrap` a negative index counts from the end. All indices are looked at before anything is
// written.
#pragma once

#include <cstring>

#include "kernel.h"

class WriteRows : public Operator {
 public:
  static constexpr const char* name = "WriteRows";
  static constexpr ElementType inputs[] = {kInt64, kAny};  // index; data and rows of one type
  static constexpr ElementType outputs[] = {kAny};
  static constexpr bool variadic = true;
  static constexpr size_t in_place = 1;

  explicit WriteRows(const Info& info)
      : axis_(info.integer("axis", 0, 0, kMostAxes - 1)), wrap_(info.flag("wrap", false)) {
    if (info.inputs() != 3 || info.outputs() != 1) {
      fail(kInvalidArgument, "there are too few or too many inputs or results");
    }
    dispatch(info.input_type(1), [](auto, auto) {});
  }

  void compute(const Context& context) const {
    Tensor index = context.input(0), data = context.input(1), rows = context.input(2);
    auto axis = static_cast<size_t>(axis_);
    if (axis >= data.shape.size() || index.shape.size() != 1) {
      fail(kInvalidArgument, "WriteRows has no such axis, or an index of several");
    }
    Shape expected = data.shape;
    expected[axis] = index.shape[0];
    if (rows.shape != expected) fail(kInvalidArgument, "the rows of WriteRows do not fit its data");
    int64_t count_of = index.shape[0], size = data.shape[axis];
    std::vector<int64_t> places(count_of);
    for (int64_t i = 0; i < count_of; ++i) {
      int64_t place = index.as<int64_t>()[i];
      if (wrap_ && place < 0) place += size;
      if (place < 0 || place >= size) fail(kInvalidArgument, "an index of WriteRows is outside");
      places[i] = place;
    }
    void* output = context.output(0, data.shape);
    if (data.size() == 0) return;
    dispatch(data.type, [&](auto stored, auto) {
      using T = decltype(stored);
      T* to = static_cast<T*>(output);
      if (output != data.data) {
        context.parallel(data.size(), kPart, [&](int64_t begin, int64_t end) {
          copy(data.as<T>() + begin, to + begin, end - begin);
        });
      }
      int64_t outer = count(data.shape.begin(), data.shape.begin() + axis);
      int64_t inner = count(data.shape.begin() + axis + 1, data.shape.end());
      int64_t written = count_of * inner;
      if (written == 0) return;
      context.each(outer, kPart / written + 1, [&](int64_t o) {
        for (int64_t i = 0; i < count_of; ++i) {
          const T* from = rows.as<T>() + (o * count_of + i) * inner;
          copy(from, to + (o * size + places[i]) * inner, inner);
        }
      });
    });
  }

 private:
  static constexpr int64_t kPart = 1 << 16;

  template <typename T>
  static void copy(const T* from, T* to, int64_t n) {
    std::memcpy(static_cast<void*>(to), static_cast<const void*>(from), n * sizeof(T));
  }

  int64_t axis_;
  bool wrap_;
};

static const Operators<WriteRows> write_rows_operators;
