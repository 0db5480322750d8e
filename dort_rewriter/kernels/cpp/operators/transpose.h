// Axes in another order, and numbers in another type at the same time.
#pragma once

#include <algorithm>

#include "kernel.h"
#include "turn.h"

// Axes of a result: their sizes, and how far apart neighbours are in the source and in the result.
// Axes that stay together are one, those of one element are none.
struct Axes {
  Shape sizes, from, to;

  ONCE Axes(const Shape& shape, const Integers& perm) {
    Shape steps(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) steps[d - 1] = steps[d] * shape[d];
    for (int64_t axis : perm) {
      if (shape[axis] == 1) continue;
      if (!sizes.empty() && from.back() == steps[axis] * shape[axis]) {
        sizes.back() *= shape[axis];
        from.back() = steps[axis];
      } else {
        sizes.push_back(shape[axis]);
        from.push_back(steps[axis]);
      }
    }
    if (sizes.empty()) {
      sizes.push_back(1);
      from.push_back(1);
    }
    to = Shape(sizes.size(), 1);
    for (size_t d = sizes.size(); d-- > 1;) to[d - 1] = to[d] * sizes[d];
  }
};

template <typename In, typename Out>
void convert(const In* from, Out* to, int64_t n) {
  if constexpr (std::is_same_v<Out, float>) {
    widen_all(from, to, n);
  } else {
    narrow_all(from, to, n);
  }
}

template <typename In, typename Out>
class Transposition {
 public:
  static void run(const Context& context, const In* from, Out* to, const Axes& axes) {
    size_t last = axes.sizes.size() - 1;
    size_t first = 0;  // the axis whose elements are neighbours in the source
    while (axes.from[first] != 1) ++first;
    if (first == last) {
      rows(context, from, to, axes);
    } else {
      blocks(context, from, to, axes, first);
    }
  }

 private:
  static constexpr int64_t kBlock = 32, kPart = 16384;

  static void rows(const Context& context, const In* from, Out* to, const Axes& axes) {
    size_t last = axes.sizes.size() - 1;
    int64_t size = axes.sizes[last], n = count(axes.sizes) / size;
    context.each(n, part_of(size), [&](int64_t row) {
      int64_t offset = 0, rest = row;
      for (size_t d = last; d-- > 0; rest /= axes.sizes[d]) {
        offset += rest % axes.sizes[d] * axes.from[d];
      }
      convert(from + offset, to + row * size, size);
    });
  }

  static void blocks(const Context& context, const In* from, Out* to, const Axes& axes,
                     size_t first) {
    size_t last = axes.sizes.size() - 1;
    int64_t wide = (axes.sizes[last] + kBlock - 1) / kBlock;
    int64_t high = (axes.sizes[first] + kBlock - 1) / kBlock;
    int64_t outer = count(axes.sizes) / axes.sizes[last] / axes.sizes[first];
    int64_t part = kPart / (kBlock * kBlock);
    context.each(outer * high * wide, part, [&](int64_t task) {
      int64_t column = task % wide * kBlock, row = task / wide % high * kBlock;
      int64_t rest = task / wide / high, source = row + column * axes.from[last];
      int64_t target = row * axes.to[first] + column;
      for (size_t d = last; d-- > 0;) {
        if (d == first) continue;
        source += rest % axes.sizes[d] * axes.from[d];
        target += rest % axes.sizes[d] * axes.to[d];
        rest /= axes.sizes[d];
      }
      int64_t rows = std::min(kBlock, axes.sizes[first] - row);
      int64_t columns = std::min(kBlock, axes.sizes[last] - column);
      block(from + source, to + target, rows, columns, axes.from[last], axes.to[first]);
    });
  }

  static void block(const In* from, Out* to, int64_t rows, int64_t columns, int64_t next_from,
                    int64_t next_to) {
    int64_t i = 0;
    for (; i + 8 <= rows; i += 8) {
      int64_t k = 0;
      for (; k + 8 <= columns; k += 8) {
        turn(from + i + k * next_from, next_from, to + i * next_to + k, next_to);
      }
      rest(from, to, i, i + 8, k, columns, next_from, next_to);
    }
    rest(from, to, i, rows, 0, columns, next_from, next_to);
  }

  static void rest(const In* from, Out* to, int64_t i, int64_t rows, int64_t k, int64_t columns,
                   int64_t next_from, int64_t next_to) {
    for (; i < rows; ++i) {
      for (int64_t c = k; c < columns; ++c) {
        float value = widen(from[i + c * next_from]);
        narrow(value, to[i * next_to + c]);
      }
    }
  }
};

// The operators, by the type they return.
template <typename Out, ElementType in, ElementType out>
class Transposing : public Operator {
 public:
  static constexpr const char* name = out == kFloat     ? "TransposeToFloat"
                                      : out == kFloat16 ? "TransposeToFloat16"
                                                        : "TransposeToBfloat16";
  static constexpr ElementType inputs[] = {in};
  static constexpr ElementType outputs[] = {out};

  explicit Transposing(const Info& info) : perm_(info.permutation("perm")) {
    if (info.input_type(0) == info.output_type(0)) fail(kInvalidArgument, "there is no other type");
  }

  void compute(const Context& context) const {
    Tensor x = context.input(0);
    if (perm_.size() != x.shape.size()) fail(kInvalidArgument, "the axes are not those of x");
    Shape shape = x.shape;
    for (size_t d = 0; d < perm_.size(); ++d) shape[d] = x.shape[perm_[d]];
    auto* to = static_cast<Out*>(context.output(0, shape));
    if (x.size() == 0) return;
    Axes axes(x.shape, perm_);
    if constexpr (!std::is_same_v<Out, float>) {
      Transposition<float, Out>::run(context, x.as<float>(), to, axes);
    } else if (x.type == kFloat16) {
      Transposition<Half, Out>::run(context, x.as<Half>(), to, axes);
    } else {
      Transposition<Bfloat, Out>::run(context, x.as<Bfloat>(), to, axes);
    }
  }

 private:
  Integers perm_;
};

static const Operators<Transposing<float, kFloating, kFloat>, Transposing<Half, kFloat, kFloat16>,
                       Transposing<Bfloat, kFloat, kBFloat16>>
    transpose_operators;
