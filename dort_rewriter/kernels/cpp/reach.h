// Where the elements of tensors that broadcast are found.
#pragma once

#include <algorithm>

#include "kernel.h"

// How the elements of an input are found from those of the result.
struct Reach {
  Shape sizes;    // of the result, neighbouring dimensions merged where the input allows it
  Shape strides;  // of the input along them, 0 where it is repeated
  bool whole;   // one element after the other
  bool single;  // one element for all

  Reach() = default;
  ONCE Reach(const Shape& from, const Shape& to) {
    const size_t missing = to.size() - from.size();
    int64_t stride = 1;
    for (size_t d = to.size(); d-- > 0;) {
      const int64_t size = d < missing ? 1 : from[d - missing], step = size == 1 ? 0 : stride;
      stride *= size;
      if (to[d] == 1) continue;
      if (!sizes.empty() && step == strides.back() * sizes.back()) {
        sizes.back() *= to[d];
      } else {
        sizes.push_back(to[d]);
        strides.push_back(step);
      }
    }
    single = count(from) == 1;
    whole = sizes.size() <= 1 && !single;
    if (sizes.empty()) {
      sizes.push_back(1);
      strides.push_back(0);
    }
    std::reverse(sizes.begin(), sizes.end());
    std::reverse(strides.begin(), strides.end());
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
