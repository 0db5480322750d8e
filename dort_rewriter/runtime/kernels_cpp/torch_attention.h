// Attention by torch's flash kernel for the CPU, which never makes the scores, and its gradient.
//
// NOTE: torch's kernel reads rows of heads as neighbouring numbers, whatever their strides say: an
// order of the axes must leave the last one where it is.
#pragma once

#include <cmath>

#include "torch_library.h"

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
    std::vector<Owned> tensors;
    std::vector<Shape> shapes;
    tensors.reserve(views_.size());
    for (size_t i = 0; i < views_.size(); ++i) {
      Tensor tensor = context.input(i);
      shapes.push_back(views_[i].sizes(tensor.shape));
      tensors.emplace_back(tensor, views_[i]);
    }
    constexpr size_t q = gradient;
    const Attended of(shapes[q], shapes[q + 1], shapes[q + 2]);
    if (views_.size() > kFixed) of.check_mask(shapes[kFixed]);
    Handle handles[kFixed + 1];
    for (size_t i = 0; i < tensors.size(); ++i) handles[i] = tensors[i].get();
    Handle* mask = tensors.size() > kFixed ? &handles[kFixed] : nullptr;
    double scale = scale_;
    double* scaled = std::isnan(scale) ? nullptr : &scale;
    Owned made[kResults];
    Error error;
    if constexpr (gradient) {
      const Shape like = of.of_query();
      if (shapes[0] != like || shapes[4] != like || shapes[kSums] != of.of_sums()) {
        fail(kInvalidArgument, "the sizes of the results do not fit");
      }
      error = function_.call(handles[0], handles[1], handles[2], handles[3], handles[4],
                             handles[5], 0.0, causal_, mask, scaled, made[0].place(),
                             made[1].place(), made[2].place());
    } else {
      error = function_.call(handles[0], handles[1], handles[2], 0.0, causal_, mask, scaled,
                             made[0].place(), made[1].place());
    }
    Interface::get().check(error, name);
    for (size_t i = 0; i < results_.size(); ++i) {
      Shape shape = gradient ? (i == 0 ? of.of_query() : of.of_key())
                             : (i == 0 ? of.of_query() : of.of_sums());
      results_[i].take(context, made[i], shape, copy_);
    }
  }

 private:
  static constexpr size_t kFixed = gradient ? 6 : 3, kResults = gradient ? 3 : 2;
  static constexpr size_t kSums = gradient ? 5 : SIZE_MAX;
  using Forward = Error(Handle, Handle, Handle, double, int32_t, Handle*, double*, Handle*,
                        Handle*);
  using Backward = Error(Handle, Handle, Handle, Handle, Handle, Handle, double, int32_t, Handle*,
                         double*, Handle*, Handle*, Handle*);

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
