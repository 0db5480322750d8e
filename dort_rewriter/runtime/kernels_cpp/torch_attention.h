// Attention by torch's flash kernel for the CPU, which never makes the scores, and its gradient.
//
// NOTE: torch's kernel reads rows of heads as neighbouring numbers, whatever their strides say: an
// order of the axes must leave the last one where it is.
#pragma once

#include <cmath>

#include "torch_library.h"
#include "torch_threads.h"

namespace torch_library {

// The sizes of an attention, from those of its inputs.
struct Attended {
  int64_t batch, heads, queries, keys, groups, width;

  Attended(const Shape& q, const Shape& k, const Shape& v) {
    if (q.size() != 4 || k.size() != 4 || v != k) {
      fail(kInvalidArgument, "attention is of a query, keys and values of four axes");
    }
    batch = q[0], heads = q[1], queries = q[2], width = q[3];
    groups = k[1], keys = k[2];
    for (const Shape* shape : {&q, &k}) {
      for (int64_t size : *shape) {
        if (size == 0) fail(kNotImplemented, "there is nothing to attend to");
      }
    }
    if (k[0] != batch || k[3] != width || heads % groups != 0) {
      fail(kInvalidArgument, "the sizes of the query, keys and values do not fit");
    }
  }

  void check_mask(const Shape& mask) const {
    const int64_t scores[] = {batch, heads, queries, keys};
    bool fits = mask.size() == 2 || mask.size() == 4;
    for (size_t d = 0; fits && d < mask.size(); ++d) {
      fits = mask[d] == 1 || mask[d] == scores[4 - mask.size() + d];
    }
    if (!fits) fail(kInvalidArgument, "the mask does not broadcast to the scores");
  }

  Shape of_query() const { return four(heads, queries); }
  Shape of_key() const { return four(groups, keys); }
  Shape of_sums() const {
    Shape shape(3);
    shape[0] = batch, shape[1] = heads, shape[2] = queries;
    return shape;
  }

 private:
  Shape four(int64_t n, int64_t length) const {
    Shape shape(4);
    shape[0] = batch, shape[1] = n, shape[2] = length, shape[3] = width;
    return shape;
  }
};

// The inputs: a query, keys and values; for the gradient the one of the result before them, the
// result and the sums of exponentials behind them; then a mask, if there is one.
template <bool gradient>
class Attention {
 public:
  static constexpr const char* name =
      gradient ? "_scaled_dot_product_flash_attention_for_cpu_backward"
               : "_scaled_dot_product_flash_attention_for_cpu";
  static constexpr ElementType inputs[] = {kEach};
  static constexpr ElementType outputs[] = {kEach};
  static constexpr bool variadic = true;
  static constexpr size_t in_place = 0;

  explicit Attention(const Info& info)
      : function_(std::string("aoti_torch_cpu_") + name),
        copy_("aoti_torch_copy_"),
        causal_(info.flag("is_causal", false)),
        scale_(info.number("scale", std::nan(""))) {
    size_t given = info.inputs();
    if ((given != kFixed && given != kFixed + 1) || info.outputs() > kResults) {
      fail(kInvalidArgument, "there are too few or too many inputs or results");
    }
    for (size_t i = 0; i < given; ++i) views_.emplace_back(info, i);
    const ElementType type = views_[0].type();
    if (type != kFloat && type != kFloat16 && type != kBFloat16) {
      fail(kNotImplemented, "attention is of float, float16 and bfloat16");
    }
    for (size_t i = 0; i < given; ++i) {
      const ElementType found = views_[i].type();
      const bool wide = found == kFloat && (i == kSums || i == kFixed);
      if (!wide && (found != type || i == kSums)) fail(kInvalidArgument, "the inputs are of other types");
      if (i != kSums && i != kFixed && !views_[i].keeps_last()) {
        fail(kNotImplemented, "the last axis has to stay the last");
      }
    }
    for (size_t i = 0; i < info.outputs(); ++i) {
      results_.emplace_back(info, i, !gradient && i == 1 ? kFloat : type);
    }
  }

  void compute(const Context& context) const {
    std::vector<Tensor> given;
    std::vector<Shape> shapes;
    for (size_t i = 0; i < views_.size(); ++i) {
      given.push_back(context.input(i));
      shapes.push_back(views_[i].sizes(given[i].shape));
    }
    constexpr size_t q = gradient;
    const Attended of(shapes[q], shapes[q + 1], shapes[q + 2]);
    if (views_.size() > kFixed) of.check_mask(shapes[kFixed]);
    if constexpr (gradient) {
      const Shape like = of.of_query();
      if (shapes[0] != like || shapes[4] != like || shapes[kSums] != of.of_sums()) {
        fail(kInvalidArgument, "the sizes of the results do not fit");
      }
    }
    std::vector<typename torch_library::Result::Place> places;
    for (size_t i = 0; i < results_.size(); ++i) {
      Shape shape = gradient ? (i == 0 ? of.of_query() : of.of_key())
                             : (i == 0 ? of.of_query() : of.of_sums());
      places.push_back(results_[i].place(context, shape));
    }
    if (!context.works_alone()) return attend(of, given, shapes, places, nullptr);
    const Parts parts(of, context.threads());
    context.share(parts.count, [&](int64_t i) {
      const WorksAlone alone;
      const Range part = parts[i];
      attend(of, given, shapes, places, parts.count == 1 ? nullptr : &part);
    });
  }

 private:
  static constexpr size_t kFixed = gradient ? 6 : 3, kResults = gradient ? 3 : 2;
  static constexpr size_t kSums = gradient ? 5 : SIZE_MAX;
  using Forward = Error(Handle, Handle, Handle, double, int32_t, Handle*, double*, Handle*,
                        Handle*);
  using Backward = Error(Handle, Handle, Handle, Handle, Handle, Handle, double, int32_t, Handle*,
                         double*, Handle*, Handle*, Handle*);

  // How attention is parted between threads: by batches, or by the heads of keys.
  struct Parts {
    // The work that a thread more is worth, in multiplications.
    static constexpr double kWorthAThread = 300e3;
    size_t axis = 0;
    int64_t size, count;

    Parts(const Attended& of, int64_t threads) {
      const double work = double(of.batch) * double(of.heads) * double(of.queries) *
                          double(of.keys) * double(of.width) * 2;
      const double worth = std::max(1.0, std::min(work / kWorthAThread, double(threads)));
      count = static_cast<int64_t>(worth);
      auto longest = [&](int64_t n) { return double((n + count - 1) / count) / double(n); };
      axis = longest(of.groups) < longest(of.batch) ? 1 : 0;
      size = axis == 0 ? of.batch : of.groups;
      count = std::min(count, size);
    }

    Range operator[](int64_t i) const { return {axis, i * size / count, (i + 1) * size / count}; }
  };

  // Compute a part, or all.
  void attend(const Attended& of, const std::vector<Tensor>& given,
              const std::vector<Shape>& shapes,
              const std::vector<typename torch_library::Result::Place>& places,
              const Range* part) const {
    constexpr size_t q = gradient;
    // The same part of a tensor with the heads of queries, or of keys.
    Range ranges[2];
    if (part != nullptr) {
      const int64_t times = part->axis == 1 ? of.heads / of.groups : 1;
      ranges[0] = {part->axis, part->begin * times, part->end * times};
      ranges[1] = *part;
    }
    auto range = [&](bool of_keys) { return part == nullptr ? nullptr : &ranges[of_keys]; };
    std::vector<Owned> tensors;
    tensors.reserve(given.size());
    for (size_t i = 0; i < given.size(); ++i) {
      const bool repeats =
          i == kFixed && (shapes[i].size() == 2 || (part != nullptr && shapes[i][part->axis] == 1));
      const bool of_keys = i == q + 1 || i == q + 2;
      tensors.emplace_back(given[i], views_[i], repeats ? nullptr : range(of_keys));
    }
    Handle handles[kFixed + 1];
    for (size_t i = 0; i < tensors.size(); ++i) handles[i] = tensors[i].get();
    Handle* mask = tensors.size() > kFixed ? &handles[kFixed] : nullptr;
    double scale = scale_;
    double* scaled = std::isnan(scale) ? nullptr : &scale;
    Owned made[kResults];
    Error error;
    if constexpr (gradient) {
      error = function_.call(handles[0], handles[1], handles[2], handles[3], handles[4],
                             handles[5], 0.0, causal_, mask, scaled, made[0].place(),
                             made[1].place(), made[2].place());
    } else {
      error = function_.call(handles[0], handles[1], handles[2], 0.0, causal_, mask, scaled,
                             made[0].place(), made[1].place());
    }
    Interface::get().check(error, name);
    for (size_t i = 0; i < results_.size(); ++i) {
      results_[i].take(places[i], made[i], range(gradient && i > 0), copy_);
    }
  }

  Function<std::conditional_t<gradient, Backward, Forward>> function_;
  Copy copy_;
  std::vector<View> views_;
  std::vector<Result> results_;
  bool causal_;
  double scale_;
};

}  // namespace torch_library

inline std::vector<const OrtCustomOp*> torch_attention() {
  using torch_library::Attention;
  return {operator_of<Attention<false>>(), operator_of<Attention<true>>()};
}
