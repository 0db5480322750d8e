// What kernels of attention and of its gradient read and write, however they compute it.
//
// NOTE: rows of heads are read as neighbouring numbers: an order of the axes must leave the last one
// where it is.
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
    const Shape scores{batch, heads, queries, keys};
    if ((mask.size() != 2 && mask.size() != 4) || !broadcasts(mask, scores)) {
      fail(kInvalidArgument, "the mask does not broadcast to the scores");
    }
  }

  Shape of_query() const { return {batch, heads, queries, width}; }
  Shape of_key() const { return {batch, groups, keys, width}; }
  Shape of_sums() const { return {batch, heads, queries}; }
};

// The inputs: a query, keys and values; for the gradient the one of the result before them, the
// result and the sums of exponentials behind them; then a mask, if there is one.
template <bool gradient>
class AttentionNode {
 public:
  static constexpr size_t kFixed = gradient ? 6 : 3, kResults = gradient ? 3 : 2;
  static constexpr size_t kQuery = gradient, kSums = gradient ? 5 : SIZE_MAX;

  // Our own kernels attend where there is no torch.
  AttentionNode(const Info& info, bool by_torch)
      : causal_(info.flag("is_causal", false)), scale_(info.number("scale", std::nan(""))) {
    size_t given = info.inputs();
    if ((given != kFixed && given != kFixed + 1) || info.outputs() > kResults) {
      fail(kInvalidArgument, "there are too few or too many inputs or results");
    }
    for (size_t i = 0; i < given; ++i) views_.emplace_back(info, i, by_torch);
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
      results_.emplace_back(info, i, !gradient && i == 1 ? kFloat : type, by_torch);
    }
  }

  // What a call is given, and where its results go.
  struct Call {
    std::vector<Tensor> given;
    std::vector<Shape> shapes;
    Attended of;
    std::vector<Result::Place> places;
  };

  Call call(const Context& context) const {
    std::vector<Tensor> given;
    std::vector<Shape> shapes;
    for (size_t i = 0; i < views_.size(); ++i) {
      given.push_back(context.input(i));
      shapes.push_back(views_[i].sizes(given[i].shape));
    }
    const Attended of(shapes[kQuery], shapes[kQuery + 1], shapes[kQuery + 2]);
    if (has_mask()) of.check_mask(shapes[kFixed]);
    if constexpr (gradient) {
      const Shape like = of.of_query();
      if (shapes[0] != like || shapes[4] != like || shapes[kSums] != of.of_sums()) {
        fail(kInvalidArgument, "the sizes of the results do not fit");
      }
    }
    std::vector<Result::Place> places;
    for (size_t i = 0; i < results_.size(); ++i) {
      Shape shape = gradient ? (i == 0 ? of.of_query() : of.of_key())
                             : (i == 0 ? of.of_query() : of.of_sums());
      places.push_back(results_[i].place(context, shape));
    }
    return {std::move(given), std::move(shapes), of, std::move(places)};
  }

  bool has_mask() const { return views_.size() > kFixed; }
  bool is_causal() const { return causal_; }
  double scale() const { return scale_; }  // NaN for the usual one
  ElementType type() const { return views_[0].type(); }
  const View& view(size_t i) const { return views_[i]; }
  const std::vector<Result>& results() const { return results_; }

 private:
  std::vector<View> views_;
  std::vector<Result> results_;
  bool causal_;
  double scale_;
};

}  // namespace torch_library
