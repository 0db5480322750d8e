// Sliding windows over the last two axes: columns of convolutions, and pooling by maximum.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "floats.h"
#include "kernel.h"
#include "vectors.h"

// The windows along one axis, as torch counts them.
struct Axis {
  int64_t kernel, stride, padding, dilation, ceil_mode;

  int64_t extent() const { return dilation * (kernel - 1) + 1; }

  int64_t count(int64_t size) const {
    int64_t room = size + 2 * padding - extent();
    if (room < 0 && !(ceil_mode && room + stride > 0)) {
      fail(kInvalidArgument, "a window is larger than what it slides over");
    }
    int64_t windows = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
    return windows - (ceil_mode && (windows - 1) * stride >= size + padding);
  }

  // The windows whose element `place` lies inside: from first to before last.
  void inside(int64_t place, int64_t size, int64_t windows, int64_t& first, int64_t& last) const {
    int64_t offset = place * dilation - padding;
    first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
    last = offset >= size ? 0 : std::min(windows, (size - 1 - offset) / stride + 1);
    first = std::min(first, last);
  }
};

struct Window {
  static constexpr int64_t kLargest = 1 << 24;  // products of two, and sums, are far from 2 ** 63

  Axis high, wide;

  // From the attribute `windows`: kernel, stride, padding, dilation and ceil_mode, by axis.
  explicit Window(const Info& info) {
    Integers w = info.integers("windows");
    bool valid = w.size() == 10;
    for (size_t i = 0; valid && i < 10; ++i) {
      valid = w[i] >= (i % 5 == 2 || i % 5 == 4 ? 0 : 1) && w[i] <= (i % 5 == 4 ? 1 : kLargest);
    }
    if (!valid) fail(kInvalidArgument, "windows have five numbers by axis");
    high = {w[0], w[1], w[2], w[3], w[4]};
    wide = {w[5], w[6], w[7], w[8], w[9]};
  }
};

// Add the products of a plane and a filter to the sums of its windows, those of the padding left out.
template <typename F>
void add_without_padding(const Axis& high, const Axis& wide, const float* plane, int64_t height, int64_t width,
                         int64_t rows, int64_t columns, F&& weight, double* sums) {
  for (int64_t i = 0; i < high.kernel; ++i) {
    int64_t top, bottom;
    high.inside(i, height, rows, top, bottom);
    for (int64_t j = 0; j < wide.kernel; ++j) {
      int64_t first, last;
      wide.inside(j, width, columns, first, last);
      const double factor = weight(i * wide.kernel + j);
      for (int64_t y = top; y < bottom; ++y) {
        const int64_t from = (y * high.stride + i * high.dilation - high.padding) * width +
                             j * wide.dilation - wide.padding;
        for (int64_t x = first; x < last; ++x) sums[y * columns + x] += factor * plane[from + x * wide.stride];
      }
    }
  }
}

// Largest elements of windows: the first of equal ones, the last NaN; and their places.
class MaxPool : public Operator {
 public:
  static constexpr const char* name = "MaxPool";
  static constexpr ElementType inputs[] = {kFloating};
  static constexpr ElementType outputs[] = {kFloating, kInt64};
  static constexpr bool last_optional = true;

  explicit MaxPool(const Info& info) : window_(info) {
    for (const Axis& axis : {window_.high, window_.wide}) {
      if (axis.padding > axis.extent() / 2) {
        fail(kInvalidArgument, "a padding is at most half of its window");
      }
    }
  }

  void compute(const Context& context) const {
    Tensor x = context.input(0);
    size_t rank = x.shape.size();
    if (rank < 2) fail(kInvalidArgument, "MaxPool needs two axes");
    int64_t height = x.shape[rank - 2], width = x.shape[rank - 1];
    int64_t rows = window_.high.count(height), columns = window_.wide.count(width);
    Shape shape = x.shape;
    shape[rank - 2] = rows;
    shape[rank - 1] = columns;
    const Written values(context, 0, shape);
    int64_t* places = static_cast<int64_t*>(context.optional_output(1, shape));
    int64_t planes = count(x.shape.begin(), x.shape.end() - 2), area = rows * columns;
    if (height * width > INT32_MAX) fail(kNotImplemented, "MaxPool of a plane too large");
    if (count(shape) == 0) return;
    const Plane plane(window_, height, width, rows, columns);
    const ::Floats given(x);
    context.each(planes, part_of(area), [&](int64_t p) {
      const float* from = given.at(p * height * width, height * width, 0);
      values.put(p * area, area, 1, [&](float* to) {
        if (places == nullptr) {
          pool<false>(plane, from, to, nullptr);
        } else {
          pool<true>(plane, from, to, places + p * area);
        }
      });
    });
  }

 private:
  // Neighbouring windows at once: compilers do not make vectors of strided reads by themselves.
  static constexpr int64_t kVector = 8;
  typedef float Floats __attribute__((vector_size(32)));
  typedef int32_t Ints __attribute__((vector_size(32)));

  // What all planes have alike.
  struct Plane {
    // The windows that have an element at one place of theirs.
    struct Taps {
      int64_t first, last;

      bool hold(int64_t column) const { return first <= column && column + kVector <= last; }
    };

    int64_t height, width, rows, columns;
    std::vector<Taps> taps;
    Taps all{0, 0};
    std::vector<int32_t> starts;  // of the windows of a row

    Plane(const Window& window, int64_t height, int64_t width, int64_t rows, int64_t columns)
        : height(height), width(width), rows(rows), columns(columns), taps(window.wide.kernel),
          starts((columns + kVector - 1) / kVector * kVector) {
      all.last = columns;
      for (size_t j = 0; j < taps.size(); ++j) {
        window.wide.inside(static_cast<int64_t>(j), width, columns, taps[j].first, taps[j].last);
        all = {std::max(all.first, taps[j].first), std::min(all.last, taps[j].last)};
      }
      for (size_t c = 0; c < starts.size(); ++c) {
        starts[c] = static_cast<int32_t>(start(window.wide, static_cast<int64_t>(c)));
      }
    }
  };

  static int64_t start(const Axis& axis, int64_t window) {
    int64_t at = window * axis.stride - axis.padding;
    return at >= 0 ? at : at + (-at + axis.dilation - 1) / axis.dilation * axis.dilation;
  }

  template <bool kPlaces>
  void pool(const Plane& plane, const float* from, float* values, int64_t* places) const {
    switch (window_.wide.stride) {
      case 1: return pool_by<kPlaces, 1>(plane, from, values, places);
      case 2: return pool_by<kPlaces, 2>(plane, from, values, places);
      default: return pool_by<kPlaces, 0>(plane, from, values, places);
    }
  }

  // `kStep` is the stride along a row, where vectors are read by it.
  template <bool kPlaces, int32_t kStep>
  void pool_by(const Plane& plane, const float* from, float* values, int64_t* places) const {
    const Axis high = window_.high, wide = window_.wide;
    for (int64_t row = 0; row < plane.rows; ++row) {
      auto top = static_cast<int32_t>(start(high, row) * plane.width);
      int64_t y = row * high.stride - high.padding;
      int64_t above = y >= 0 ? 0 : (-y + high.dilation - 1) / high.dilation;
      int64_t below = std::min(high.kernel, (plane.height - 1 - y) / high.dilation + 1);
      for (int64_t begin = 0; begin < plane.columns; begin += kVector) {
        // The last windows are looked at twice, rather than one by one.
        int64_t column = std::max<int64_t>(0, std::min(begin, plane.columns - kVector));
        Best<kPlaces, kStep> best(top + load<Ints>(&plane.starts[column]), wide.stride);
        bool is_inside = plane.all.hold(column);
        for (int64_t i = above; i < below; ++i) {
          int64_t line = y + i * high.dilation;
          int64_t at = line * plane.width - wide.padding + column * wide.stride;
          for (const Plane::Taps& taps : plane.taps) {
            if (kStep != 0 && (is_inside || taps.hold(column))) {
              best.take(read<kStep>(from + at), at);
            } else {
              best.take(read_inside(from, at, wide.stride, column, taps), at);
            }
            at += wide.dilation;
          }
        }
        int64_t to = row * plane.columns + column, n = std::min(kVector, plane.columns - column);
        store(best.values, n, values + to);
        if (kPlaces) store(best.places, n, places + to);
      }
    }
  }

  // The largest elements so far of neighbouring windows, and their places.
  template <bool kPlaces, int32_t kStep>
  struct Best {
    Floats values = Floats{} - HUGE_VALF;
    Ints places, along;

    Best(const Ints& starts, int64_t stride)
        : places(starts),
          along((kStep ? kStep : static_cast<int32_t>(stride)) * Ints{0, 1, 2, 3, 4, 5, 6, 7}) {}

    void take(const Floats& line, int64_t at) {
      Ints wins = (line > values) | (line != line);
      values = wins ? line : values;
      if (kPlaces) places = wins ? static_cast<int32_t>(at) + along : places;
    }
  };

  template <int32_t kStep>
  static Floats read(const float* from) {
    if (kStep == 1) return load<Floats>(from);
    // The element after the last window may not be there.
    return even(load<Floats>(from), load<Floats>(from + kVector - 1));
  }

  // `at` may be in front of the plane: no pointer is made of it where nothing is read.
  static Floats read_inside(const float* plane, int64_t at, int64_t step, int64_t column,
                            const Plane::Taps& taps) {
    Floats line;
    for (int64_t k = 0; k < kVector; ++k) {  // -inf wins nowhere
      bool is_inside = column + k >= taps.first && column + k < taps.last;
      line[k] = is_inside ? plane[at + k * step] : -HUGE_VALF;
    }
    return line;
  }

  static Floats even(const Floats& low, const Floats& high) {
#if defined(__clang__)
    return __builtin_shufflevector(low, high, 0, 2, 4, 6, 9, 11, 13, 15);
#else
    return __builtin_shuffle(low, high, Ints{0, 2, 4, 6, 9, 11, 13, 15});
#endif
  }

  template <typename V, typename T>
  static void store(const V& from, int64_t n, T* to) {
    if (n == kVector) {  // a number that compilers know
      for (int64_t k = 0; k < kVector; ++k) to[k] = from[k];
    } else {
      for (int64_t k = 0; k < n; ++k) to[k] = from[k];
    }
  }

  Window window_;
};

// The gradient of MaxPool: each element added at its place in planes of zeros.
class MaxPoolGrad : public Operator {
 public:
  static constexpr const char* name = "MaxPoolGrad";
  static constexpr ElementType inputs[] = {kFloat, kInt64, kInt64};  // gradient, places, shape
  static constexpr ElementType outputs[] = {kFloat};

  explicit MaxPoolGrad(const Info&) {}

  void compute(const Context& context) const {
    Tensor gradient = context.input(0), places = context.input(1), target = context.input(2);
    Shape shape = target.sizes();
    size_t rank = shape.size();
    if (rank < 2 || gradient.shape.size() != rank || gradient.shape != places.shape) {
      fail(kInvalidArgument, "the inputs of MaxPoolGrad do not fit each other");
    }
    for (size_t d = 0; d + 2 < rank; ++d) {
      if (gradient.shape[d] != shape[d]) fail(kInvalidArgument, "MaxPoolGrad has other planes");
    }
    float* output = static_cast<float*>(context.output(0, shape));
    if (count(shape) == 0) return;
    int64_t planes = count(shape.begin(), shape.end() - 2), area = shape[rank - 2] * shape[rank - 1];
    int64_t windows = gradient.shape[rank - 2] * gradient.shape[rank - 1];
    context.each(planes, part_of(area), [&](int64_t p) {
      float* plane = output + p * area;
      std::fill_n(plane, area, 0.0f);
      const float* from = gradient.as<float>() + p * windows;
      const int64_t* place = places.as<int64_t>() + p * windows;
      for (int64_t i = 0; i < windows; ++i) {
        if (place[i] >= 0 && place[i] < area) plane[place[i]] += from[i];
      }
    });
  }
};

// The elements of windows side by side: [N, C, H, W] becomes [C * kernel, N * windows].
class Columns : public Operator {
 public:
  static constexpr const char* name = "Columns";
  static constexpr ElementType inputs[] = {kFloat};
  static constexpr ElementType outputs[] = {kFloat};

  explicit Columns(const Info& info) : window_(info) {}

  void compute(const Context& context) const {
    Tensor x = context.input(0);
    if (x.shape.size() != 4) fail(kInvalidArgument, "Columns reads four axes");
    const Axis &high = window_.high, &wide = window_.wide;
    int64_t batch = x.shape[0], channels = x.shape[1], height = x.shape[2], width = x.shape[3];
    int64_t rows = high.count(height), columns = wide.count(width), area = times(rows, columns);
    int64_t taps = high.kernel * wide.kernel, length = times(batch, area);
    const Shape shape{times(channels, taps), length};
    float* output = static_cast<float*>(context.output(0, shape));
    if (count(shape) == 0) return;
    context.each(channels * taps, part_of(length, 32768), [&](int64_t r) {
      int64_t channel = r / taps, i = r % taps / wide.kernel, j = r % wide.kernel;
      int64_t first, last, top, bottom;
      wide.inside(j, width, columns, first, last);
      high.inside(i, height, rows, top, bottom);
      for (int64_t n = 0; n < batch; ++n) {
        const float* plane = x.as<float>() + (n * channels + channel) * height * width;
        float* to = output + r * length + n * area;
        std::fill(to, to + top * columns, 0.0f);
        std::fill(to + bottom * columns, to + area, 0.0f);
        if (high.stride == 1 && wide.stride == 1 && columns == width && first < last) {
          copy_block(plane + (i * high.dilation - high.padding) * width + j * wide.dilation -
                         wide.padding,
                     to, top, bottom, first, last, width);
          continue;
        }
        for (int64_t y = top; y < bottom; ++y) {
          const float* from = plane + (y * high.stride - high.padding + i * high.dilation) * width +
                              j * wide.dilation - wide.padding;
          copy_row(from, to + y * columns, first, last, columns, wide.stride);
        }
      }
    });
  }

 private:
  // Rows of windows that lie as the rows they read: what no window has is zeroed afterwards.
  static void copy_block(const float* from, float* to, int64_t top, int64_t bottom, int64_t first,
                         int64_t last, int64_t width) {
    if (top == bottom) return;
    int64_t begin = top * width + first, end = (bottom - 1) * width + last;
    std::memcpy(to + begin, from + begin, (end - begin) * sizeof(float));
    for (int64_t y = top; y < bottom; ++y) {
      for (int64_t c = 0; c < first; ++c) to[y * width + c] = 0.0f;
      for (int64_t c = last; c < width; ++c) to[y * width + c] = 0.0f;
    }
  }

  static void copy_row(const float* from, float* to, int64_t first, int64_t last, int64_t columns,
                       int64_t step) {
    for (int64_t c = 0; c < first; ++c) to[c] = 0.0f;
    if (step == 1) {
      for (int64_t c = first; c < last; ++c) to[c] = from[c];
    } else {
      for (int64_t c = first; c < last; ++c) to[c] = from[c * step];
    }
    for (int64_t c = last; c < columns; ++c) to[c] = 0.0f;
  }

  Window window_;
};

// The sum of what windows hold: [C * kernel, N * windows] becomes [N, C, H, W].
class ColumnsGrad : public Operator {
 public:
  static constexpr const char* name = "ColumnsGrad";
  static constexpr ElementType inputs[] = {kFloat, kInt64};  // columns, shape of the result
  static constexpr ElementType outputs[] = {kFloat};

  explicit ColumnsGrad(const Info& info) : window_(info) {}

  void compute(const Context& context) const {
    Tensor given = context.input(0), target = context.input(1);
    Shape shape = target.sizes();
    if (shape.size() != 4) fail(kInvalidArgument, "ColumnsGrad makes four axes");
    const Axis &high = window_.high, &wide = window_.wide;
    int64_t batch = shape[0], channels = shape[1], height = shape[2], width = shape[3];
    int64_t rows = high.count(height), columns = wide.count(width), area = times(rows, columns);
    int64_t taps = high.kernel * wide.kernel, length = times(batch, area), plane = height * width;
    if (given.size() != times(times(channels, taps), length)) {
      fail(kInvalidArgument, "the columns are those of another shape");
    }
    float* output = static_cast<float*>(context.output(0, shape));
    if (count(shape) == 0) return;
    context.each(batch * channels, part_of(plane, 32768 / taps), [&](int64_t p) {
      int64_t n = p / channels, channel = p % channels;
      float* to = output + p * plane;
      std::fill_n(to, plane, 0.0f);
      for (int64_t tap = 0; tap < taps; ++tap) {
        int64_t i = tap / wide.kernel, j = tap % wide.kernel, first, last, top, bottom;
        wide.inside(j, width, columns, first, last);
        high.inside(i, height, rows, top, bottom);
        const float* from = given.as<float>() + (channel * taps + tap) * length + n * area;
        for (int64_t y = top; y < bottom; ++y) {
          float* row = to + (y * high.stride - high.padding + i * high.dilation) * width +
                       j * wide.dilation - wide.padding;
          add_row(from + y * columns, row, first, last, wide.stride);
        }
      }
    });
  }

 private:
  static void add_row(const float* from, float* to, int64_t first, int64_t last, int64_t step) {
    if (step == 1) {
#pragma GCC ivdep
      for (int64_t c = first; c < last; ++c) to[c] += from[c];
    } else {
      for (int64_t c = first; c < last; ++c) to[c * step] += from[c];
    }
  }

  Window window_;
};

static const Operators<MaxPool, MaxPoolGrad, Columns, ColumnsGrad> windows_operators;
