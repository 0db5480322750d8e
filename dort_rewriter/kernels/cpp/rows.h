// A tensor as rows of its last axes.
#pragma once

#include <algorithm>

#include "kernel.h"

struct Rows {
  int64_t rows, width;

  Rows(const Shape& shape, int64_t axes) {
    auto rank = static_cast<int64_t>(shape.size());
    if (axes < 1 || axes > rank) fail(kInvalidArgument, "rows of more axes than there are");
    rows = count(shape.begin(), shape.end() - axes);
    width = count(shape.end() - axes, shape.end());
  }

  int64_t part() const { return part_of(width); }

  void expect(const Tensor& tensor, int64_t size) const {
    if (tensor.size() != size) fail(kInvalidArgument, "an input of other rows");
  }
};
