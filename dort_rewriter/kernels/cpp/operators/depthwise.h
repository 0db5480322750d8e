// Convolutions of two axes in which each channel has a filter of its own.
//
// ONNX Runtime makes a product of matrices of each channel where the filters are no constants.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "windows.h"

class DepthwiseConv : public Operator {
 public:
  static constexpr const char* name = "DepthwiseConv";
  static constexpr ElementType inputs[] = {kFloat, kFloat, kFloat};  // images, filters, biases
  static constexpr ElementType outputs[] = {kFloat};

  explicit DepthwiseConv(const Info& info) : window_(info) {
    if (window_.high.ceil_mode || window_.wide.ceil_mode) {
      fail(kInvalidArgument, "a convolution counts whole windows");
    }
  }

  void compute(const Context& context) const {
    Tensor x = context.input(0), filters = context.input(1), biases = context.input(2);
    if (x.shape.size() != 4) fail(kInvalidArgument, "DepthwiseConv reads four axes");
    const Axis &high = window_.high, &wide = window_.wide;
    int64_t channels = x.shape[1], height = x.shape[2], width = x.shape[3];
    int64_t taps = high.kernel * wide.kernel;
    if (filters.size() != times(channels, taps) || biases.size() != channels) {
      fail(kInvalidArgument, "the filters are not those of the channels");
    }
    int64_t rows = high.count(height), columns = wide.count(width);
    Shape shape = x.shape;
    shape[2] = rows;
    shape[3] = columns;
    float* output = static_cast<float*>(context.output(0, shape));
    if (count(shape) == 0) return;
    const Padded padded(window_, rows, columns);
    int64_t planes = x.shape[0] * channels, area = rows * columns;
    context.parallel(planes, part_of(area, 262144 / taps), [&](int64_t begin, int64_t end) {
      static thread_local std::vector<float> memory;
      memory.assign(padded.size(), 0.0f);  // what is around a plane stays so
      for (int64_t p = begin; p < end; ++p) {
        const float* filter = filters.as<float>() + p % channels * taps;
        const float* plane = x.as<float>() + p * height * width;
        if (!std::all_of(filter, filter + taps, [](float w) { return std::isfinite(w); })) {
          leave_padding_out(plane, height, width, filter, biases.as<float>()[p % channels], rows,
                            columns, output + p * area);
          continue;
        }
        padded.fill(plane, height, width, memory.data());
        padded.convolve(memory.data(), filter, biases.as<float>()[p % channels],
                        output + p * area);
      }
    });
  }

 private:
  // With a filter that is not finite: its products with the padding would be NaN.
  void leave_padding_out(const float* plane, int64_t height, int64_t width, const float* filter,
                         float bias, int64_t rows, int64_t columns, float* to) const {
    std::vector<double> sums(static_cast<size_t>(rows * columns), bias);
    add_without_padding(window_.high, window_.wide, plane, height, width, rows, columns,
                        [&](int64_t tap) { return filter[tap]; }, sums.data());
    for (double sum : sums) *to++ = static_cast<float>(sum);
  }

  // Neighbouring windows at once, and several rows of them: a sum waits for the one before.
  static constexpr int64_t kVector = 8, kVectors = 2, kColumns = kVector * kVectors, kRows = 4;
  typedef float Floats __attribute__((vector_size(32)));

  // A plane with its padding around it. Every column that a window begins at is beside the next one:
  // with a stride of two, even columns stand first in a row, odd ones behind them.
  class Padded {
   public:
    ONCE Padded(const Window& window, int64_t rows, int64_t columns)
        : high_(window.high), wide_(window.wide), rows_(rows), columns_(columns) {
      constexpr int64_t kMostNumbers = int64_t{1} << 26;
      int64_t used = times(columns - 1, wide_.stride) + wide_.extent();
      height_ = times(rows - 1, high_.stride) + high_.extent();
      length_ = (used - 1) / wide_.stride + 1 + kColumns;
      pitch_ = times(length_, wide_.stride);
      if (pitch_ > kMostNumbers || height_ > kMostNumbers / pitch_) {
        fail(kNotImplemented, "a plane is too large");
      }
      for (int64_t j = 0; j < wide_.kernel; ++j) places_.push_back(place(j * wide_.dilation));
    }

    size_t size() const { return static_cast<size_t>(height_ * pitch_); }

    void fill(const float* plane, int64_t height, int64_t width, float* to) const {
      const int64_t stride = wide_.stride, padding = wide_.padding;
      for (int64_t y = 0; y < std::min(height, height_ - high_.padding); ++y) {
        const float* from = plane + y * width;
        float* row = to + (y + high_.padding) * pitch_;
        for (int64_t first = 0; first < std::min(stride, width); ++first) {
          float* next = row + place(first + padding);
          if (stride == 1) {
            std::memcpy(next, from, width * sizeof(float));
          } else {
            for (int64_t c = first; c < width; c += stride) *next++ = from[c];
          }
        }
      }
    }

    void convolve(const float* padded, const float* filter, float bias, float* to) const {
      for (int64_t row = 0; row < rows_; row += kRows) {
        // those behind the last one are the last one again
        int64_t rows = std::min(kRows, rows_ - row), starts[kRows];
        for (int64_t k = 0; k < kRows; ++k) {
          starts[k] = (row + std::min(k, rows - 1)) * high_.stride * pitch_;
        }
        for (int64_t column = 0; column < columns_; column += kColumns) {
          Floats sums[kRows][kVectors];
#pragma GCC unroll 4
          for (int64_t k = 0; k < kRows; ++k) {
#pragma GCC unroll 2
            for (int64_t v = 0; v < kVectors; ++v) sums[k][v] = Floats{} + bias;
          }
          const float* weight = filter;
          for (int64_t i = 0; i < high_.kernel; ++i) {
            const float* line = padded + i * high_.dilation * pitch_ + column;
            for (int64_t j = 0; j < wide_.kernel; ++j, ++weight) {
              const float* at = line + places_[j];
              const Floats factor = Floats{} + *weight;
#pragma GCC unroll 4
              for (int64_t k = 0; k < kRows; ++k) {
#pragma GCC unroll 2
                for (int64_t v = 0; v < kVectors; ++v) {
                  const auto given = load<Floats>(at + starts[k] + v * kVector);
                  sums[k][v] = add_product(sums[k][v], factor, given);
                }
              }
            }
          }
          float done[kRows][kColumns];  // sums have no address: they stay in registers
#pragma GCC unroll 4
          for (int64_t k = 0; k < kRows; ++k) {
#pragma GCC unroll 2
            for (int64_t v = 0; v < kVectors; ++v) {
              std::memcpy(&done[k][v * kVector], &sums[k][v], sizeof(Floats));
            }
          }
          int64_t n = std::min(kColumns, columns_ - column);
          for (int64_t k = 0; k < rows; ++k) {
            std::memcpy(to + (row + k) * columns_ + column, done[k], n * sizeof(float));
          }
        }
      }
    }

   private:
    int64_t place(int64_t column) const {
      return column % wide_.stride * length_ + column / wide_.stride;
    }

    const Axis &high_, &wide_;
    int64_t rows_, columns_;
    int64_t height_, pitch_;  // rows, and numbers of a row
    int64_t length_;          // numbers of a row that begin windows
    Integers places_;         // of the taps of a filter, in a row
  };

  Window window_;
};

static const Operators<DepthwiseConv> depthwise_operators;
