// Convolutions by torch's kernels, and their gradients.
//
// NOTE: a result is copied from where torch made it: its interface has no convolution that writes
// where asked to.
#pragma once

#include <cmath>
#include <cstring>

#include "torch_library.h"
#include "torch_threads.h"

namespace torch_library {

// How windows move over the axes of an image.
struct Windows {
  Integers stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;

  explicit Windows(const Info& info)
      : stride(numbers(info, "stride", 1, kMostStride)),
        padding(numbers(info, "padding", 0, kMostReach)),
        dilation(numbers(info, "dilation", 1, kMostReach)),
        output_padding(numbers(info, "output_padding", 0, kMostStride)),
        transposed(info.flag("transposed", false)),
        groups(info.integer("groups", 1, 1, kMost)) {
    const size_t rank = axes();
    if (rank < 1 || rank > 3 || padding.size() != rank || dilation.size() != rank ||
        output_padding.size() != rank) {
      fail(kInvalidArgument, "a convolution has one to three axes, and as many numbers of each kind");
    }
  }

  size_t axes() const { return stride.size(); }

  // The axes of weights with the channels of results.
  size_t made_by() const { return transposed ? 1 : 0; }

  // The channels of results.
  int64_t channels(const Shape& weight) const { return transposed ? weight[1] * groups : weight[0]; }

  // The sizes of the result.
  Shape result(const Shape& image, const Shape& weight) const {
    if (image.size() != axes() + 2 || weight.size() != image.size()) {
      fail(kInvalidArgument, "an image and weights have other axes");
    }
    const bool fits = transposed ? weight[0] == image[1] : weight[1] * groups == image[1];
    if (!fits || weight[0] % groups != 0) {
      fail(kInvalidArgument, "the channels of an image and of weights do not fit");
    }
    Shape sizes = image;
    sizes[1] = channels(weight);
    for (size_t d = 0; d < axes(); ++d) {
      const int64_t size = image[d + 2], reach = dilation[d] * (weight[d + 2] - 1) + 1;
      const int64_t windows = size + 2 * padding[d] - reach;
      const int64_t spread = (size - 1) * stride[d] - 2 * padding[d] + reach + output_padding[d];
      if (weight[d + 2] < 1 || (transposed ? spread < 0 : windows < 0)) {
        fail(kInvalidArgument, "a window is larger than the image");
      }
      sizes[d + 2] = transposed ? spread : windows / stride[d] + 1;
    }
    return sizes;
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 24;
  // Beyond some thousands oneDNN writes code with numbers that are too large for it: strides of
  // 4,096, paddings of 16,384 end the process. No product of two overflows, either.
  // NOTE: `graph/schemas.py` has the same numbers.
  static constexpr int64_t kMostStride = 1024, kMostReach = 8192;

  static Integers numbers(const Info& info, const char* name, int64_t least, int64_t most) {
    Integers found = info.integers(name);
    for (int64_t n : found) {
      if (n < least || n > most) {
        fail(kInvalidArgument, std::string("the attribute ") + name + " is out of its range");
      }
    }
    return found;
  }
};

// Reads an image, weights and perhaps a bias; the gradient reads that of the result, the image and the
// weights, and makes those of image, weights and bias of which somebody reads.
//
// With `checks` the result of another kernel comes before them, of the gradient that of the weights:
// it is made again where that kernel multiplied the padding, which torch leaves out, with an infinity
// or NaN. Those products are NaN, and part of the first or the last number of what the same filter
// makes: no other number has a window that is farther outside, to the one side or to the other.
template <bool gradient, bool checks = false>
class Convolution : public Operator {
 public:
  static constexpr const char* name = checks ? (gradient ? "PaddingLeftOutGrad" : "PaddingLeftOut")
                                             : (gradient ? "convolution_backward" : "convolution");
  static constexpr ElementType inputs[] = {kAny};
  static constexpr ElementType outputs[] = {kAny};
  static constexpr bool variadic = true;
  static constexpr size_t in_place = checks;
  static constexpr const char* layouts = checks ? "dense" : "any";
  static constexpr const char* library = "torch";

  explicit Convolution(const Info& info)
      : windows_(info),
        relu_(checks && !gradient && info.flag("relu", false)),
        function_(gradient ? "aoti_torch_cpu_convolution_backward" : "aoti_torch_cpu_convolution"),
        copy_("aoti_torch_copy_") {
    const size_t given = info.inputs();
    if (given < checks + kFixed || given > checks + kMostInputs || info.outputs() > kMostResults) {
      fail(kInvalidArgument, "there are too few or too many inputs or results");
    }
    for (size_t i = checks; i < given; ++i) views_.emplace_back(info, i);
    const ElementType type = views_[0].type();
    if (type != kFloat && (checks || (type != kFloat16 && type != kBFloat16))) {
      fail(kNotImplemented, "convolutions are of float, float16 and bfloat16");
    }
    for (size_t i = 0; i < info.outputs(); ++i) results_.emplace_back(info, i, type);
    if (checks) {
      Integers behind{0, static_cast<int64_t>(windows_.axes()) + 1};
      for (size_t d = 1; d <= windows_.axes(); ++d) behind.push_back(static_cast<int64_t>(d));
      channels_last_ = View(type, views_[0].number(), behind);
    }
    Interface::get();
  }

  void compute(const Context& context) const {
    Call call;
    for (size_t i = 0; i < views_.size(); ++i) {
      call.given.push_back(context.input(checks + i));
      call.shapes.push_back(views_[i].sizes(call.given[i].shape));
    }
    const Shape &image = call.shapes[kImage], &weight = call.shapes[kImage + 1];
    const Shape result = windows_.result(image, weight);
    const Shape bias{result[1]};
    if (gradient ? call.shapes[0] != result : call.shapes.size() > kFixed && call.shapes[kFixed] != bias) {
      fail(kInvalidArgument, "the sizes of what is given do not fit");
    }
    call.places.resize(kFirst);
    for (size_t i = kFirst; i < kFirst + results_.size(); ++i) {
      const Shape& shape = !gradient ? result : i == 0 ? image : i == 1 ? weight : bias;
      call.places.push_back(results_[i - kFirst].place(context, shape));
      call.wanted[i] = call.places[i].data != nullptr;
    }
    if (checks && is_right(context.input(0), call.places[kFirst])) return;
    if (count(result) == 0 || (gradient && count(image) == 0)) {
      // NOTE: torch 2.8 has freed the sizes of a bias by the time it makes zeros of them.
      for (const Result::Place& place : call.places) {
        if (place.data != nullptr) std::memset(place.data, 0, count(place.lies) * views_[0].width());
      }
      return;
    }
    std::vector<float> pixels;
    if (checks && windows_.axes() > 1) order_channels_last(call, pixels);
    const double work = double(count(result)) * double(count(weight)) / double(result[1]);
    const int64_t most = context.works_alone() ? context.threads() : 1;
    const int64_t threads = threads_for(work, kWorthAThread, most);
    const auto parts = shared_by(threads, call, image[0], result[1]);
    if (parts.empty()) return;  // all results are unused
    if (!context.works_alone()) {
      convolve(call, parts[0]);
    } else {
      context.share(static_cast<int64_t>(parts.size()), [&](int64_t i) {
        const WorksAlone alone;
        convolve(call, parts[static_cast<size_t>(i)]);
      });
    }
    if (!relu_) return;
    float* made = static_cast<float*>(call.places[0].data);
    for (int64_t i = 0; i < count(result); ++i) made[i] = made[i] < 0 ? 0 : made[i];
  }

 private:
  static constexpr size_t kImage = gradient, kFixed = kImage + 2, kMostInputs = 3;
  static constexpr size_t kMostResults = gradient && !checks ? 3 : 1;
  // The first of image, weights and bias that a gradient is made of.
  static constexpr size_t kFirst = gradient && checks ? 1 : 0;
  // The work that a thread more is worth, in multiplications.
  static constexpr double kWorthAThread = 600e3;

  using Numbers = const int64_t*;
  using Forward = Error(Handle, Handle, Handle*, Numbers, int64_t, Numbers, int64_t, Numbers,
                        int64_t, int32_t, Numbers, int64_t, int64_t, Handle*);
  using Backward = Error(Handle, Handle, Handle, Numbers*, int64_t, Numbers, int64_t, Numbers,
                         int64_t, Numbers, int64_t, int32_t, Numbers, int64_t, int64_t,
                         const int32_t*, int64_t, Handle*, Handle*, Handle*);

  struct Call {
    std::vector<Tensor> given;
    std::vector<Shape> shapes;
    std::vector<Result::Place> places;
    bool wanted[3] = {};
    const View* image = nullptr;  // how the image lies, if not as it is given
  };

  // Whether what another kernel made stands: no number is NaN that would be, with the padding in it.
  // It is given to ONNX Runtime in any case.
  static bool is_right(const Tensor& made, const Result::Place& place) {
    if (made.shape != place.lies) fail(kInvalidArgument, "the sizes of what was made do not fit");
    if (place.data == nullptr || made.size() == 0) return true;
    const float* numbers = made.as<float>();
    if (place.data != numbers) std::memcpy(place.data, numbers, made.size() * sizeof(float));
    // What a filter makes of the first picture; the gradients of its first window.
    const int64_t length = count(made.shape.begin() + 2, made.shape.end());
    const int64_t filters = made.shape[gradient ? 0 : 1], step = gradient ? made.shape[1] * length : length;
    for (int64_t i = 0; i < filters; ++i) {
      const float* first = numbers + i * step;
      if (std::isnan(first[0]) || std::isnan(first[length - 1])) return false;
    }
    return true;
  }

  // Let the channels of the image lie behind its pixels: torch leaves out the padding of every image
  // like that, and of others by their groups and strides.
  void order_channels_last(Call& call, std::vector<float>& pixels) const {
    const Shape& sizes = call.shapes[kImage];
    Tensor ordered = call.given[kImage];
    for (size_t d = 2; d < sizes.size(); ++d) ordered.shape[d - 1] = sizes[d];
    ordered.shape[0] = sizes[0], ordered.shape[sizes.size() - 1] = sizes[1];
    pixels.resize(static_cast<size_t>(count(sizes)));
    ordered.data = pixels.data();
    const Owned to(ordered, channels_last_), from(call.given[kImage], views_[kImage]);
    Interface::get().check(copy_.call(to.get(), from.get(), 0), "copy");
    call.given[kImage] = ordered;
    call.image = &channels_last_;
  }

  // The channels that oneDNN works on at once: for fewer it has slow loops.
  static constexpr int64_t kChannels = 16;

  // What work is divided along: pictures, channels of results, or channels of images.
  enum Along { kPictures, kMade, kRead };

  // What a thread makes; all where there is no end.
  struct Part {
    bool wanted[3];
    Along along = kPictures;
    int64_t begin = 0, end = 0;
  };

  static int64_t grains_of(int64_t size, int64_t grain) { return (size + grain - 1) / grain; }

  // Results of the same pictures or channels, in so many parts.
  static void part(std::vector<Part>& parts, const bool (&wanted)[3], Along along, int64_t size,
                   int64_t most) {
    const int64_t grain = along == kPictures ? 1 : kChannels, grains = grains_of(size, grain);
    const int64_t n = std::max<int64_t>(1, std::min(grains, most));
    for (int64_t i = 0; i < n; ++i) {
      Part one{{wanted[0], wanted[1], wanted[2]}, along};
      if (n > 1) one.begin = i * grains / n * grain, one.end = std::min((i + 1) * grains / n * grain, size);
      parts.push_back(one);
    }
  }

  std::vector<Part> shared_by(int64_t threads, const Call& call, int64_t batch,
                              int64_t channels) const {
    std::vector<Part> parts;
    const int64_t most_channels = windows_.groups == 1 ? channels : 1;
    // Each part reads all weights, or all pictures: torch brings them into an order of its own.
    const Shape &image = call.shapes[kImage], &weight = call.shapes[kImage + 1];
    const bool reads_less = most_channels > 1 && count(weight) > count(image);
    if constexpr (gradient) {
      // Each picture has its own gradient, those of weights and bias are sums over all pictures.
      const bool sums = call.wanted[1] || call.wanted[2];
      if (threads > 1 || !sums || !call.wanted[0]) {
        const bool of_image[3] = {call.wanted[0], false, false};
        const bool of_weights[3] = {false, call.wanted[1], call.wanted[2]};
        const bool both = sums && call.wanted[0] && !reads_less;
        const int64_t first = both ? threads / 2 : threads;
        if (call.wanted[0]) {
          part(parts, of_image, reads_less ? kRead : kPictures, reads_less ? image[1] : batch, first);
        }
        if (sums) part(parts, of_weights, kMade, most_channels, both ? threads - first : threads);
        return parts;
      }
      part(parts, call.wanted, kPictures, batch, 1);
    } else {
      const bool by_channels = grains_of(most_channels, kChannels) > std::min(batch, threads - 1) &&
                               (batch < threads || reads_less);
      part(parts, call.wanted, by_channels ? kMade : kPictures, by_channels ? most_channels : batch,
           threads);
    }
    return parts;
  }

  void convolve(const Call& call, const Part& part) const {
    const auto& [given, shapes, places, wanted, image] = call;
    // The part of a tensor along its axis of pictures or of channels, if it has one.
    auto range = [&](size_t pictures, size_t made, size_t read, Range& found) -> const Range* {
      const size_t axis = part.along == kPictures ? pictures : part.along == kMade ? made : read;
      if (part.end == 0 || axis == kNone) return nullptr;
      found = {axis, part.begin, part.end};
      return &found;
    };
    Range space{};
    const size_t made_by = windows_.made_by(), read_by = 1 - made_by;
    std::vector<Owned> tensors;
    tensors.reserve(given.size());
    for (size_t i = 0; i < given.size(); ++i) {
      const Range* here = i + 1 == kImage ? range(0, 1, kNone, space)
                          : i == kImage   ? range(0, kNone, 1, space)
                          : i < kFixed    ? range(kNone, made_by, read_by, space)
                                          : range(kNone, 0, kNone, space);
      tensors.emplace_back(given[i], i == kImage && image != nullptr ? *image : views_[i], here);
    }
    auto of = [](const Integers& numbers) { return numbers.data(); };
    const auto n = static_cast<int64_t>(windows_.axes());
    Owned made[gradient ? 3 : 1];
    Error error;
    if constexpr (gradient) {
      const int32_t mask[3] = {part.wanted[0], part.wanted[1], part.wanted[2]};
      const bool some = part.along == kMade && part.end != 0;
      const int64_t channels = some ? part.end - part.begin : windows_.channels(shapes[kImage + 1]);
      const int64_t* sizes = &channels;
      error = function_.call(tensors[0].get(), tensors[1].get(), tensors[2].get(),
                             part.wanted[2] ? &sizes : nullptr, part.wanted[2] ? 1 : 0,
                             of(windows_.stride), n, of(windows_.padding), n, of(windows_.dilation), n,
                             windows_.transposed, of(windows_.output_padding), n, windows_.groups,
                             mask, 3, made[0].place(), made[1].place(), made[2].place());
    } else {
      Handle bias = tensors.size() > kFixed ? tensors[kFixed].get() : nullptr;
      error = function_.call(tensors[0].get(), tensors[1].get(), bias == nullptr ? nullptr : &bias,
                             of(windows_.stride), n, of(windows_.padding), n, of(windows_.dilation), n,
                             windows_.transposed, of(windows_.output_padding), n, windows_.groups,
                             made[0].place());
    }
    Interface::get().check(error, name);
    for (size_t i = 0; i < places.size(); ++i) {
      if (!part.wanted[i]) continue;
      const Range* there = !gradient ? range(0, 1, kNone, space)
                           : i == 0  ? range(0, kNone, 1, space)
                           : i == 1  ? range(kNone, made_by, kNone, space)
                                     : range(kNone, 0, kNone, space);
      results_[i - kFirst].take(places[i], made[i], there, copy_);
    }
  }

  static constexpr size_t kNone = SIZE_MAX;

  Windows windows_;
  bool relu_;  // of what was made, and of what is made again
  Function<std::conditional_t<gradient, Backward, Forward>> function_;
  Copy copy_;
  std::vector<View> views_;
  View channels_last_;
  std::vector<Result> results_;
};

}  // namespace torch_library

static const Operators<torch_library::Convolution<false>, torch_library::Convolution<true>,
                       torch_library::Convolution<false, true>,
                       torch_library::Convolution<true, true>>
    torch_convolution_operators;
