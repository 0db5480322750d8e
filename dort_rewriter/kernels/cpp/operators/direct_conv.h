// Convolutions in which each channel of the result reads all channels, and their gradients.
//
// ONNX Runtime writes out the windows and multiplies matrices, one picture at a time, where filters
// are no constants; constant ones it keeps in another layout, which takes longer than one convolution.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "batch_norm.h"
#include "windows.h"

// In the layout of a padded picture all windows read a tap of a filter from contiguous numbers: a
// vector of them is multiplied with the tap, for several filters at once. The right padding of a row
// is the left one of the next row, and so is that of pictures below each other. With a stride, places
// of each remainder are contiguous. Narrow pictures may be interleaved, so that a vector is filled.
// Numbers of 16 bits are computed as floats, and rounded at the end; with `rounded` before each step that
// follows the sums as well, as kernels of their own would do.
class DirectConv : public Operator {
 public:
  static constexpr const char* name = "DirectConv";
  // Images, filters, biases; perhaps scale, bias, mean and variance of a normalization of the result,
  // and what is added to that.
  static constexpr ElementType inputs[] = {kFloating, kFloating, kFloating};
  static constexpr ElementType outputs[] = {kFloating};
  static constexpr bool variadic = true;
  static constexpr size_t most = 8;

  explicit DirectConv(const Info& info)
      : window_(info),
        gradient_(info.flag("gradient", false)),
        channels_last_(info.flag("channels_last", false)),
        relu_(info.flag("relu", false)),
        rounds_(info.flag("rounded", false)),
        normalizes_(info.inputs() >= 7),
        adds_(info.inputs() % 4 == 0),
        epsilon_(normalizes_ ? info.number("epsilon") : 0) {
    if (info.inputs() > 4 && !normalizes_) {
      fail(kInvalidArgument, "a normalization has scale, bias, mean and variance");
    }
    if (window_.high.ceil_mode || window_.wide.ceil_mode) {
      fail(kInvalidArgument, "a convolution counts whole windows");
    }
    if (std::max(window_.high.stride, window_.wide.stride) > kMostStride) {
      fail(kNotImplemented, "DirectConv of windows that lie far apart");
    }
    if (gradient_ && (window_.high.stride != 1 || window_.wide.stride != 1)) {
      fail(kInvalidArgument, "the gradient is one of windows that lie one place apart");
    }
  }

  void compute(const Context& context) const {
    const Tensor x = context.input(0), filters = context.input(1), biases = context.input(2);
    const Call call(window_, gradient_, channels_last_, x.shape, filters.shape);
    if (biases.size() != call.made) fail(kInvalidArgument, "the biases are not those of the filters");
    const Given given{x, AllFloats(filters), AllFloats(biases), Following(*this, context, call)};
    void* output = context.output(0, call.result);
    if (count(call.result) == 0) return;
    switch (context.output_type(0)) {
      case kFloat16: return make(context, call, given, static_cast<Half*>(output));
      case kBFloat16: return make(context, call, given, static_cast<Bfloat*>(output));
      default: return make(context, call, given, static_cast<float*>(output));
    }
  }

 private:
  static constexpr int64_t kVector = kWidest, kFilters = kWidest == 16 ? 8 : 4;
  // Vectors of windows at once: with the sums of all filters they fill the registers.
  static constexpr int64_t kVectors = 3;
  // Numbers that are added up before they are added to others: errors of long sums grow less.
  static constexpr int64_t kSummed = 128;
  // Numbers that a line of a cache holds.
  static constexpr int64_t kInARow = 16;
  // The work that a thread more is worth, in multiplications.
  static constexpr double kWorthAThread = 600e3;
  // Numbers of padded pictures that a cache of a core holds.
  static constexpr int64_t kCached = 1 << 17;
  // Windows of several pictures that are enough to fill vectors.
  static constexpr int64_t kWindows = 1024;
  // Numbers of memory that a thread keeps for the next call.
  static constexpr size_t kKept = size_t{1} << 22;
  static constexpr int64_t kMostStride = 64;
  // Pictures side by side.
  static constexpr int64_t kPictures = 16;

  using Floats = WidestFloats;

  // What is done with the sums of a filter: sum * factors[f] + shifts[f], then something of the shape of
  // the result is added, which is read where it is wanted.
  struct After {
    const float *factors = nullptr, *shifts = nullptr, *added = nullptr;
    bool relu = false, rounds = false;

    template <typename T, typename V, typename F>
    V made_of(V sum, int64_t f, F&& read) const {
      if (factors != nullptr) sum = add_product(shifts[f] - V{}, before_a_step<T>(sum), factors[f] - V{});
      if (added != nullptr) sum = before_a_step<T>(sum) + read();
      if (relu) sum = sum < V{} ? V{} : sum;
      return sum;
    }

   private:
    template <typename T, typename V>
    V before_a_step(const V& sum) const {
      return rounds ? rounded<T>(sum) : sum;
    }
  };

  template <typename T>
  static float rounded(float value) {
    T stored;
    narrow(value, stored);
    return widen(stored);
  }
  template <typename T>
  static Floats rounded(const Floats& values) {
    if constexpr (std::is_same_v<T, float>) return values;
    T stored[kVector];
    narrow_vector(values, stored);
    float all[kVector];
    widen_all(stored, all, kVector);
    return load<Floats>(all);
  }
  template <typename T>
  static void narrow_vector(const Floats& values, T* to) {
    float all[kVector];
    std::memcpy(all, &values, sizeof(values));
    narrow_all(all, to, kVector);
  }

  // What is convolved, as pictures of two axes.
  struct Call {
    Axis high, wide;
    bool gradient, channels_last;
    int64_t images, read, height, width, made, rows, columns;
    Shape result;

    ONCE Call(const Window& window, bool gradient, bool channels_last, const Shape& x, const Shape& filters)
        : high(window.high), wide(window.wide), gradient(gradient), channels_last(channels_last) {
      const size_t rank = x.size();
      if ((rank != 3 && rank != 4) || filters.size() != rank) {
        fail(kInvalidArgument, "DirectConv reads pictures of one or two axes, and such filters");
      }
      const bool flat = rank == 3;
      const size_t second = channels_last ? rank - 1 : 1, across = channels_last ? rank - 2 : rank - 1;
      const int64_t tall = flat ? 1 : filters[across - 1];
      images = x[0], read = x[1], height = flat ? 1 : x[2], width = x[rank - 1];
      made = filters[gradient ? second : 0];
      if (filters[gradient ? 0 : second] != read || tall != high.kernel || filters[across] != wide.kernel) {
        fail(kInvalidArgument, "the filters are not those of the channels and windows");
      }
      rows = high.count(height), columns = wide.count(width);
      if (read == 0) fail(kNotImplemented, "DirectConv of no channels");
      result = x;
      result[1] = made, result[rank - 1] = columns;
      if (!flat) result[2] = rows;
      check_sizes(result);
    }

    int64_t taps() const { return high.kernel * wide.kernel; }
    int64_t depth() const { return read * taps(); }
    bool has_padding() const { return high.padding > 0 || wide.padding > 0; }

    // From a filter to the next one, from a channel, and from a tap.
    struct Steps {
      int64_t filter, channel, tap;
    };
    Steps steps() const {
      // The first axis of filters, the second one, and the last: which is the second one, or the taps.
      const int64_t channels = gradient ? made : read, first = channels * taps();
      const int64_t second = channels_last ? 1 : taps(), tap = channels_last ? channels : 1;
      return gradient ? Steps{second, first, tap} : Steps{first, second, tap};
    }
    // The tap of filters for a place of a window: the gradient has them turned.
    int64_t tap_of(int64_t place) const { return gradient ? taps() - 1 - place : place; }

    bool has_infinite(const float* filters, int64_t f) const {
      const Steps step = steps();
      for (int64_t c = 0; c < read; ++c) {
        for (int64_t t = 0; t < taps(); ++t) {
          if (!std::isfinite(filters[f * step.filter + c * step.channel + t * step.tap])) return true;
        }
      }
      return false;
    }

    // What one filter makes of all pictures, without products of the padding.
    template <typename T>
    void leave_out_padding(const float* x, const float* filters, float bias, int64_t f, const After& after,
                           T* output) const {
      const Steps step = steps();
      const int64_t area = rows * columns;
      std::vector<double> sums(static_cast<size_t>(area));
      for (int64_t b = 0; b < images; ++b) {
        std::fill(sums.begin(), sums.end(), bias);
        for (int64_t c = 0; c < read; ++c) {
          const float* weights = filters + f * step.filter + c * step.channel;
          add_without_padding(high, wide, x + (b * read + c) * height * width, height, width, rows, columns,
                              [&](int64_t place) { return weights[tap_of(place) * step.tap]; }, sums.data());
        }
        const int64_t at = (b * made + f) * area;
        for (int64_t i = 0; i < area; ++i) {
          const auto sum = static_cast<float>(sums[static_cast<size_t>(i)]);
          narrow(after.made_of<T>(sum, f, [&] { return after.added[at + i]; }), output[at + i]);
        }
      }
    }
  };

  // NOTE: a product of the padding with an infinity or NaN is NaN, and part of the first or the last
  // number of what the same filter makes: no other has a window that is farther outside.
  template <typename T>
  static bool may_have_multiplied_padding(const Call& call, const T* output) {
    const int64_t area = call.rows * call.columns;
    for (int64_t f = 0; f < call.made; ++f) {
      if (std::isnan(widen(output[f * area])) || std::isnan(widen(output[(f + 1) * area - 1]))) return true;
    }
    return false;
  }

  // What follows the sums, out of the inputs behind the biases.
  class Following {
   public:
    Following(const DirectConv& conv, const Context& context, const Call& call) {
      after_.relu = conv.relu_, after_.rounds = conv.rounds_;
      if (conv.normalizes_) {
        const auto made = static_cast<size_t>(call.made);
        for (size_t i = 3; i < 7; ++i) {
          if (context.input(i).size() != call.made) {
            fail(kInvalidArgument, "the statistics are not those of the filters");
          }
        }
        const AllFloats weight(context.input(3)), bias(context.input(4));
        const AllFloats mean(context.input(5)), variance(context.input(6));
        factors_.resize(2 * made);
        BatchNormInference::find_factors(call.made, weight.data(), bias.data(), mean.data(), variance.data(),
                                         conv.epsilon_, factors_.data(), factors_.data() + made);
        after_.factors = factors_.data(), after_.shifts = after_.factors + made;
      }
      if (conv.adds_) {
        const Tensor added = context.input(conv.normalizes_ ? 7 : 3);
        if (added.shape != call.result) fail(kInvalidArgument, "what is added has another shape");
        after_.added = added_.emplace(added).data();
      }
    }
    const After& after() const { return after_; }

   private:
    std::vector<float> factors_;
    std::optional<AllFloats> added_;
    After after_;
  };

  // What a call reads.
  struct Given {
    Tensor x;
    AllFloats filters, biases;
    Following following;
  };

  template <typename T>
  static void make(const Context& context, const Call& call, const Given& given, T* output) {
    const After& after = given.following.after();
    const float *filters = given.filters.data(), *biases = given.biases.data();
    const ::Floats x(given.x);
    const Shares shares(call, context.threads());
    const double work = double(count(call.result)) / double(shares.size()) * double(call.depth());
    const int64_t worth = std::max<int64_t>(1, static_cast<int64_t>(kWorthAThread / work));
    // NOTE: not `parallel`, which leaves two shares to one thread.
    context.share((shares.size() + worth - 1) / worth, [&](int64_t part) {
      static thread_local std::vector<float> memory;
      const int64_t begin = part * worth, end = std::min(begin + worth, shares.size());
      for (int64_t i = begin; i < end; ++i) {
        const Share share = shares[i];
        const Layout& layout = *share.layout;
        memory.assign(layout.size(), 0.0f);
        layout.fill(x, share.image, share.row, memory.data());
        layout.convolve(memory.data(), filters, biases, share, after, output);
      }
      if (memory.size() > kKept) std::vector<float>().swap(memory);
    });
    if (!call.has_padding() || !may_have_multiplied_padding(call, output)) return;
    const AllFloats all(given.x);
    context.each(call.made, 1, [&](int64_t f) {
      if (call.has_infinite(filters, f)) {
        call.leave_out_padding(all.data(), filters, biases[f], f, after, output);
      }
    });
  }

  // The places of an axis in memory. Those of one remainder lie together, `pitch` of them in a line.
  struct Line {
    int64_t pitch, shift;

    Line(const Axis& axis, int64_t size, int64_t windows)
        : shift((axis.kernel - 1) * axis.dilation / axis.stride) {
      int64_t most = 0, before = INT64_MAX;
      for (int64_t rest = 0; rest < std::min(axis.stride, axis.extent()); ++rest) {
        most = std::max(most, (axis.padding + size - rest + axis.stride - 1) / axis.stride);
        before =
            std::min(before, (std::max<int64_t>(axis.padding - rest, 0) + axis.stride - 1) / axis.stride);
      }
      // Places behind the last one are those before the first one of the next line, where no windows
      // of both begin.
      const int64_t needed = windows + shift;
      pitch = std::max({std::min(most, needed), needed - before, windows});
    }
  };

  struct Share;

  // Some pictures, or some rows of one, as they lie with their padding; and the vectors of windows.
  class Layout {
   public:
    ONCE Layout(const Call& call, int64_t images, int64_t rows, bool beside)
        : call_(call), images_(images), rows_(rows), step_(beside ? images : 1) {
      const Axis &high = call.high, &wide = call.wide;
      const Line tall(high, call.height, call.rows), broad(wide, call.width, call.columns);
      pitch_ = broad.pitch;
      lines_ = images == 1 ? rows + tall.shift : tall.pitch;
      image_ = beside ? 1 : times(lines_, pitch_);
      const int64_t below = beside ? 0 : times(images - 1, lines_);
      const int64_t last = times(below + rows + tall.shift, pitch_) + broad.shift + call.columns;
      const int64_t phase = times(step_, last) + kVector;
      // Only places that a tap begins at are read.
      rests_.resize(static_cast<size_t>(high.stride * wide.stride));
      int64_t used = 0;
      for (int64_t i = 0; i < high.kernel; ++i) {
        for (int64_t j = 0; j < wide.kernel; ++j) {
          const int64_t down = i * high.dilation, across = j * wide.dilation;
          Rest& rest = rests_[down % high.stride * wide.stride + across % wide.stride];
          if (rest.phase < 0) rest = find_rest(times(used++, phase), across % wide.stride);
          taps_.push_back(rest.phase + (down / high.stride * pitch_ + across / wide.stride) * step_);
        }
      }
      channel_ = (times(used, phase) + kVector - 1) / kVector * kVector;
      if (channel_ % 1024 == 0) channel_ += kVector;  // places of one set of a cache
      size_ = times(channel_, call.read) + kVector;
      if (size_ > kMostNumbers) fail(kNotImplemented, "pictures are too large");
      find_vectors();
    }

    size_t size() const { return static_cast<size_t>(size_); }
    size_t vectors() const { return starts_.size(); }

    // Copies pictures from one on, or the rows that some windows of one read.
    void fill(const ::Floats& x, int64_t image, int64_t row, float* to) const {
      const Axis &high = call_.high, &wide = call_.wide;
      const int64_t first = row * high.stride - high.padding;
      const int64_t last = first + (rows_ - 1) * high.stride + high.extent();
      for (int64_t c = 0; c < call_.read; ++c) {
        for (int64_t b = 0; b < images_; ++b) {
          const int64_t plane = ((image + b) * call_.read + c) * call_.height * call_.width;
          float* channel = to + c * channel_ + b * image_;
          for (int64_t y = std::max<int64_t>(first, 0); y < std::min(last, call_.height); ++y) {
            const float* from = x.at(plane + y * call_.width, call_.width, 0);
            float* line = channel + (y - first) / high.stride * pitch_ * step_;
            const Rest* rest = &rests_[(y - first) % high.stride * wide.stride];
            for (int64_t r = 0; r < wide.stride; ++r, ++rest) {
              if (rest->length > 0) copy(from + rest->from, wide.stride, rest->length, line + rest->to);
            }
          }
        }
      }
    }

    // Says which products there are, once it is the layout to be used.
    ONCE void find_products() {
      const int64_t taps = call_.taps();
      const Call::Steps step = call_.steps();
      Products found{std::max<int64_t>(1, kSummed / taps), step.filter, step.channel, {}, {}, {}};
      const auto add = [&](int64_t c, int64_t t) {
        found.places.push_back(c * channel_ + taps_[t]);
        found.weights.push_back(c * step.channel + step.tap * call_.tap_of(t));
      };
      // What lies in a row is read in a row.
      if (found.channel == 1 && call_.read % kInARow == 0) {
        found.channels = kInARow;
        for (int64_t t = 0; t < taps; ++t) {
          for (int64_t c = 0; c < kInARow; ++c) add(c, t);
        }
      } else {
        for (int64_t c = 0; c < found.channels; ++c) {
          for (int64_t t = 0; t < taps; ++t) add(c, t);
        }
      }
      found.ahead = found.weights;
      if (call_.made * call_.depth() > kCached) find_lines(found);
      products_ = std::move(found);
    }

    template <typename T>
    void convolve(const float* x, const float* filters, const float* biases, const Share& share,
                  const After& after, T* output) const;

   private:
    static constexpr int64_t kMostNumbers = int64_t{1} << 30;

    // Numbers of a vector that are wanted, and where they go.
    struct Piece {
      int64_t lane, length, to;
    };

    // The numbers of a row whose places have one remainder: the first one, how many, and where they go.
    struct Rest {
      int64_t phase = -1, from = 0, length = 0, to = 0;
    };

    Rest find_rest(int64_t phase, int64_t remainder) const {
      const int64_t stride = call_.wide.stride, padding = call_.wide.padding;
      const int64_t from = ((remainder - padding) % stride + stride) % stride;
      const int64_t place = (from + padding) / stride;
      const int64_t length = std::min((call_.width - from + stride - 1) / stride, pitch_ - place);
      return {phase, from, length, phase + place * step_};
    }

    ONCE void find_vectors() {
      const int64_t area = call_.rows * call_.columns, picture = call_.made * area;
      const int64_t lines = step_ > 1 ? 1 : images_, length = call_.columns * step_;
      int64_t end = -1;  // of the vector
      for (int64_t b = 0; b < lines; ++b) {
        for (int64_t y = 0; y < rows_; ++y) {
          const int64_t line = b * image_ + y * pitch_ * step_;
          for (int64_t x = 0; x < length;) {
            if (line + x >= end) {
              starts_.push_back(line + x);
              pieces_.push_back(static_cast<int64_t>(all_.size()));
              end = line + x + kVector;
            }
            const int64_t lane = line + x - starts_.back();
            if (step_ == 1) {
              const int64_t n = std::min(length - x, end - line - x);
              all_.push_back({lane, n, b * picture + y * call_.columns + x});
              x += n;
            } else {
              all_.push_back({lane, 1, x % step_ * picture + y * call_.columns + x / step_});
              ++x;
            }
          }
        }
      }
      pieces_.push_back(static_cast<int64_t>(all_.size()));
    }

    void copy(const float* from, int64_t stride, int64_t n, float* to) const {
      if (stride == 1 && step_ == 1) {
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
      } else if (stride == 2 && step_ == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = from[2 * i];
      } else {
        for (int64_t i = 0; i < n; ++i) to[i * step_] = from[i * stride];
      }
    }

#if defined(__AVX512F__)
    static __mmask16 lanes_of(const Piece& piece) {
      return static_cast<__mmask16>(((1u << piece.length) - 1) << piece.lane);
    }
#endif

    static Floats read(const Piece& piece, const float* plane) {
#if defined(__AVX512F__)
      return _mm512_maskz_loadu_ps(lanes_of(piece), plane + piece.to - piece.lane);
#else
      float all[kVector] = {};
      for (int64_t i = 0; i < piece.length; ++i) all[piece.lane + i] = plane[piece.to + i];
      return load<Floats>(all);
#endif
    }

    static void write(const Floats& made, const Piece& piece, float* plane) {
#if defined(__AVX512F__)
      _mm512_mask_storeu_ps(plane + piece.to - piece.lane, lanes_of(piece), made);
#else
      if (piece.length == kVector) {
        std::memcpy(plane + piece.to, &made, sizeof(made));
      } else {
        float all[kVector];
        std::memcpy(all, &made, sizeof(made));
        for (int64_t i = 0; i < piece.length; ++i) plane[piece.to + i] = all[piece.lane + i];
      }
#endif
    }

    template <typename T>
    static void write(const Floats& made, const Piece& piece, T* plane) {
      T all[kVector];
      narrow_vector(made, all);
      if (piece.length == kVector) {
        std::memcpy(plane + piece.to, all, sizeof(all));
      } else {
        for (int64_t i = 0; i < piece.length; ++i) plane[piece.to + i] = all[piece.lane + i];
      }
    }

    // Products that are added up at once: of some channels, and all taps.
    struct Products {
      int64_t channels;             // at once
      int64_t filter, channel;      // from a filter to the next one, from a channel
      std::vector<int64_t> places;  // of numbers, from those of the first channel on
      std::vector<int64_t> weights;
      std::vector<int64_t> ahead;  // of weights of the next products
    };

    // Filters that no cache holds come in time if they are asked for before: a line at each product.
    static void find_lines(Products& products) {
      std::vector<int64_t> lines;
      for (const int64_t weight : products.weights) {
        for (int64_t f = 0; f < kFilters; ++f) lines.push_back((weight + f * products.filter) / kInARow);
      }
      std::sort(lines.begin(), lines.end());
      lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
      const int64_t next = products.channels * products.channel;
      for (size_t k = 0, n = products.ahead.size(); k < n; ++k) {
        products.ahead[k] = lines[k * lines.size() / n] * kInARow + next;
      }
    }

    // The sums of some filters over all channels, for some vectors of windows.
    template <int64_t filters, int64_t vectors>
    ONCE void sum(const float* x, const int64_t* starts, const float* weights, const float* biases,
                  const Products& products, float* sums) const {
      const int64_t *const places = products.places.data(), *const at = products.weights.data();
      const int64_t* const ahead = products.ahead.data();
      const int64_t next = channel_, filter = products.filter;
      const float* from = x + starts[0];
      const int64_t second = vectors > 1 ? starts[vectors > 1 ? 1 : 0] - starts[0] : 0;
      const int64_t third = vectors > 2 ? starts[vectors > 2 ? 2 : 0] - starts[0] : 0;
      for (int64_t begin = 0; begin < call_.read; begin += products.channels) {
        const int64_t n = std::min(products.channels, call_.read - begin) * call_.taps();
        const float* const first = from + begin * next;
        const float* const weight = weights + begin * products.channel;
        Floats some[filters][vectors];
#pragma GCC unroll 8
        for (int64_t f = 0; f < filters; ++f) {
#pragma GCC unroll 3
          for (int64_t v = 0; v < vectors; ++v) some[f][v] = Floats{};
        }
        for (int64_t k = 0; k < n; ++k) {
          const float *a = first + places[k], *b = weight + at[k];
          // The next channel lies too far away for a processor to foresee it.
          __builtin_prefetch(weight + ahead[k]);
          __builtin_prefetch(a + next);
          if (vectors > 1) __builtin_prefetch(a + next + second);
          if (vectors > 2) __builtin_prefetch(a + next + third);
          Floats given[vectors];
          given[0] = load<Floats>(a);
          if (vectors > 1) given[vectors > 1 ? 1 : 0] = load<Floats>(a + second);
          if (vectors > 2) given[vectors > 2 ? 2 : 0] = load<Floats>(a + third);
#pragma GCC unroll 8
          for (int64_t f = 0; f < filters; ++f) {
            const Floats factor = b[f * filter] - Floats{};
#pragma GCC unroll 3
            for (int64_t v = 0; v < vectors; ++v) some[f][v] = add_product(some[f][v], factor, given[v]);
          }
        }
#pragma GCC unroll 8
        for (int64_t f = 0; f < filters; ++f) {
#pragma GCC unroll 3
          for (int64_t v = 0; v < vectors; ++v) {
            float* sum = sums + (f * vectors + v) * kVector;
            some[f][v] += begin > 0 ? load<Floats>(sum) : biases[f] - Floats{};
            std::memcpy(sum, &some[f][v], sizeof(Floats));
          }
        }
      }
    }

    template <int64_t filters>
    void sum_of(int64_t vectors, const float* x, const int64_t* starts, const float* weights,
                const float* biases, const Products& products, float* sums) const {
      switch (vectors) {
        case 1:
          return sum<filters, 1>(x, starts, weights, biases, products, sums);
        case 2:
          return sum<filters, 2>(x, starts, weights, biases, products, sums);
        default:
          return sum<filters, 3>(x, starts, weights, biases, products, sums);
      }
    }

    Call call_;
    int64_t images_, rows_;  // pictures, and rows of windows in each
    int64_t step_;           // from a number of a picture to the next one
    int64_t pitch_, lines_, image_, channel_, size_;
    std::vector<Rest> rests_;      // of places down and across
    std::vector<int64_t> taps_;    // how far each tap is from the first place of its window
    std::vector<int64_t> starts_;  // of vectors
    std::vector<int64_t> pieces_;  // the first one of each vector
    std::vector<Piece> all_;
    Products products_{};
  };

  // What one thread makes at once: some filters' results for some pictures, or for some rows of one.
  struct Share {
    const Layout* layout;
    int64_t image, row, filter, filters;
  };

  // The work of a call in shares: along pictures, rows of them, and filters.
  class Shares {
   public:
    Shares(const Call& call, int64_t threads) : call_(call) {
      const int64_t pixels = call.height * call.width, windows = call.rows * call.columns;
      const bool reads_less = call.made * call.depth() > call.images * call.read * pixels;
      // Where filters are most of what is read, each is read once.
      images_ = reads_less ? call.images : (call.images + threads - 1) / threads;
      const int64_t fit = std::min(kCached / std::max<int64_t>(1, call.read * pixels), kWindows / windows);
      images_ = std::max<int64_t>(1, std::min({images_, fit, kPictures}));
      const int64_t groups = (call.images + images_ - 1) / images_;
      rows_ = call.rows;
      if (images_ == 1 && !reads_less) {
        const int64_t large = call.read * pixels / kCached, few = (threads + groups - 1) / groups;
        const int64_t bands = std::min(call.rows, std::max<int64_t>({large, few, 1}));
        rows_ = (call.rows + bands - 1) / bands;
      }
      bands_ = (call.rows + rows_ - 1) / rows_;
      const int64_t parts = (threads + groups * bands_ - 1) / (groups * bands_);
      filters_ = (call.made + parts - 1) / parts;
      filters_ = (filters_ + kFilters - 1) / kFilters * kFilters;
      parts_ = (call.made + filters_ - 1) / filters_;
      size_ = groups * bands_ * parts_;
      add(images_, rows_);
      if (call.images % images_ != 0) add(call.images % images_, rows_);
      if (call.rows % rows_ != 0) add(images_, call.rows % rows_);
    }

    int64_t size() const { return size_; }

    Share operator[](int64_t i) const {
      const int64_t image = i / parts_ / bands_ * images_, row = i / parts_ % bands_ * rows_;
      const int64_t filter = i % parts_ * filters_;
      const bool whole = image + images_ <= call_.images && row + rows_ <= call_.rows;
      return {&layouts_[whole ? 0 : 1], image, row, filter, std::min(filters_, call_.made - filter)};
    }

   private:
    void add(int64_t images, int64_t rows) {
      Layout below(call_, images, rows, false);
      if (images > 1) {
        // Results that lie side by side are written one by one.
        Layout beside(call_, images, rows, true);
        const auto cost = [&](const Layout& l, int64_t writes) {
          return l.vectors() * (call_.depth() + writes);
        };
        if (cost(beside, 40) < cost(below, 8)) std::swap(below, beside);
      }
      layouts_.push_back(std::move(below));
      layouts_.back().find_products();
    }

    const Call& call_;
    int64_t images_, rows_, bands_, filters_, parts_, size_;
    std::vector<Layout> layouts_;
  };

  Window window_;
  bool gradient_, channels_last_, relu_, rounds_, normalizes_, adds_;
  double epsilon_;
};

template <typename T>
void DirectConv::Layout::convolve(const float* x, const float* filters, const float* biases,
                                  const Share& share, const After& after, T* output) const {
  const int64_t area = call_.rows * call_.columns;
  const Products& products = products_;
  const int64_t picture = share.image * call_.made * area + share.row * call_.columns;
  const int64_t all = static_cast<int64_t>(starts_.size()), last = share.filter + share.filters;
  auto make = [&](int64_t v, int64_t f) {
    // A last vector alone would wait for its factors.
    const int64_t left = all - v, vectors = left == 4 ? 2 : std::min(left, kVectors);
    const int64_t rest = last - f, n = rest >= kFilters ? kFilters : rest >= 4 ? 4 : rest >= 2 ? 2 : 1;
    alignas(64) float sums[kFilters * kVectors * kVector];
    const float* weights = filters + f * products.filter;
    switch (n) {
      case 1:
        sum_of<1>(vectors, x, &starts_[v], weights, biases + f, products, sums);
        break;
      case 2:
        sum_of<2>(vectors, x, &starts_[v], weights, biases + f, products, sums);
        break;
      case 4:
        sum_of<4>(vectors, x, &starts_[v], weights, biases + f, products, sums);
        break;
      default:
        sum_of<kFilters>(vectors, x, &starts_[v], weights, biases + f, products, sums);
    }
    for (int64_t k = 0; k < n; ++k) {
      const int64_t plane = picture + (f + k) * area;
      for (int64_t u = 0; u < vectors; ++u) {
        const Floats made = load<Floats>(sums + (k * vectors + u) * kVector);
        for (int64_t p = pieces_[v + u]; p < pieces_[v + u + 1]; ++p) {
          const Piece& piece = all_[p];
          const auto added = [&] { return read(piece, after.added + plane); };
          write(after.made_of<T>(made, f + k, added), piece, output + plane);
        }
      }
    }
    return std::make_pair(vectors, n);
  };
  if (share.filters * call_.depth() > size_) {
    for (int64_t f = share.filter, n; f < last; f += n) {
      for (int64_t v = 0; v < all;) {
        const auto done = make(v, f);
        v += done.first, n = done.second;
      }
    }
  } else {
    for (int64_t v = 0, n; v < all; v += n) {
      for (int64_t f = share.filter; f < last;) {
        const auto done = make(v, f);
        n = done.first, f += done.second;
      }
    }
  }
}

static const Operators<DirectConv> direct_conv_operators;
