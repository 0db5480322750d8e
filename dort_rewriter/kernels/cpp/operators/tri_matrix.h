// TriMatrix: one value below a diagonal, one on it, one above it.
#pragma once

#include "kernel.h"

class TriMatrix : public Operator {
 public:
  static constexpr const char* name = "TriMatrix";
  // numbers of rows and of columns; the values below, on and above the diagonal
  static constexpr ElementType inputs[] = {kInt64, kInt64, kAny};
  static constexpr ElementType outputs[] = {kAny};
  static constexpr bool variadic = true;
  static constexpr bool never_fails = true;

  // `rank` axes, all but two of one element; `diagonal` is the column where row 0 crosses it.
  explicit TriMatrix(const Info& info)
      : rank_(info.integer("rank", 2, 2, kMostAxes)),
        diagonal_(std::clamp(info.integer("diagonal", 0), -kFar, kFar)) {
    dispatch(info.input_type(2), [](auto, auto) {});
    if (info.inputs() != 5 || info.outputs() != 1) {
      fail(kInvalidArgument, "TriMatrix reads two sizes and three values");
    }
  }

  void compute(const Context& context) const {
    Few<Tensor, 5> given;
    for (size_t i = 0; i < 5; ++i) {
      given.push_back(context.input(i));
      if (given[i].size() != 1) fail(kInvalidArgument, "TriMatrix reads single numbers");
    }
    int64_t rows = *given[0].as<int64_t>(), columns = *given[1].as<int64_t>();
    Shape shape(static_cast<size_t>(rank_), 1);
    shape[shape.size() - 2] = rows;
    shape[shape.size() - 1] = columns;
    void* output = context.output(0, shape);
    if (count(shape) == 0) return;
    dispatch(given[2].type, [&](auto stored, auto) {
      using T = decltype(stored);
      T below = *given[2].as<T>(), on = *given[3].as<T>(), above = *given[4].as<T>();
      context.each(rows, part_of(columns), [&](int64_t i) {
        T* row = static_cast<T*>(output) + i * columns;
        int64_t place = std::clamp<int64_t>(i + diagonal_, 0, columns);
        std::fill(row, row + place, below);
        std::fill(row + place, row + columns, above);
        if (place == i + diagonal_ && place < columns) row[place] = on;
      });
    });
  }

 private:
  static constexpr int64_t kFar = int64_t{1} << 60;  // outside of any matrix

  int64_t rank_, diagonal_;
};

static const Operators<TriMatrix> tri_matrix_operators;
