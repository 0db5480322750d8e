// Attention by torch's flash kernel for the CPU, which never makes the scores, and its gradient.
#pragma once

#include "attention.h"
#include "torch_threads.h"

namespace torch_library {

constexpr const char* kFlash = "_scaled_dot_product_flash_attention_for_cpu";
using FlashForward = Error(Handle, Handle, Handle, double, int32_t, Handle*, double*, Handle*,
                           Handle*);

// Whether heads of queries may share one of keys in this torch. Before 2.9 its kernels read, and
// write gradients, behind the heads of keys: here there are other values, and no gradients.
inline bool shares_heads() {
  static const bool found = [] {
    constexpr int64_t kWidth = 16;
    float query[2 * kWidth] = {}, values[2 * kWidth], result[2 * kWidth] = {};
    for (int64_t i = 0; i < 2 * kWidth; ++i) values[i] = i < kWidth ? 1.0f : 2.0f;
    auto sizes = [](int64_t heads) { return Shape{1, heads, 1, kWidth}; };
    const View view(kFloat, number_of(kFloat));
    const Function<FlashForward> attend(std::string("aoti_torch_cpu_") + kFlash);
    const Copy copy("aoti_torch_copy_");
    const Owned q(query, sizes(2), view), k(values, sizes(1), view), v(values, sizes(1), view);
    const Owned to(result, sizes(2), view);
    Owned made[2];
    return attend.call(q.get(), k.get(), v.get(), 0.0, 0, nullptr, nullptr, made[0].place(),
                       made[1].place()) == 0 &&
           copy.call(to.get(), made[0].get(), 0) == 0 && result[kWidth] == 1.0f;
  }();
  return found;
}

template <bool gradient>
class Attention : public Operator {
 public:
  static constexpr const char* name =
      gradient ? "_scaled_dot_product_flash_attention_for_cpu_backward"
               : "_scaled_dot_product_flash_attention_for_cpu";
  static constexpr ElementType inputs[] = {kEach};
  static constexpr ElementType outputs[] = {kEach};
  static constexpr bool variadic = true;
  static constexpr bool never_fails = true;
  static constexpr const char* layouts = "last axis";
  static constexpr const char* library = "torch";

  explicit Attention(const Info& info)
      : function_(std::string("aoti_torch_cpu_") + name), copy_("aoti_torch_copy_"), node_(info, true) {}

  void compute(const Context& context) const {
    const auto call = node_.call(context);
    if (call.of.heads != call.of.groups && !shares_heads()) {
      fail(kNotImplemented, "attention in this torch has a head of keys for each one of queries");
    }
    if (!context.works_alone()) return attend(call, nullptr);
    const Parts parts(call.of, context.threads());
    context.share(parts.count, [&](int64_t i) {
      const WorksAlone alone;
      const Range part = parts[i];
      attend(call, parts.count == 1 ? nullptr : &part);
    });
  }

 private:
  using Node = AttentionNode<gradient>;
  static constexpr size_t kFixed = Node::kFixed, kResults = Node::kResults;
  using Forward = FlashForward;
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
      count = threads_for(work, kWorthAThread, threads);
      auto longest = [&](int64_t n) { return double((n + count - 1) / count) / double(n); };
      axis = longest(of.groups) < longest(of.batch) ? 1 : 0;
      size = axis == 0 ? of.batch : of.groups;
      count = std::min(count, size);
    }

    Range operator[](int64_t i) const { return {axis, i * size / count, (i + 1) * size / count}; }
  };

  // Compute a part, or all.
  void attend(const typename Node::Call& call, const Range* part) const {
    constexpr size_t q = Node::kQuery;
    const auto& [given, shapes, of, places] = call;
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
      tensors.emplace_back(given[i], node_.view(i), repeats ? nullptr : range(of_keys));
    }
    Handle handles[kFixed + 1];
    for (size_t i = 0; i < tensors.size(); ++i) handles[i] = tensors[i].get();
    Handle* mask = tensors.size() > kFixed ? &handles[kFixed] : nullptr;
    double scale = node_.scale();
    double* scaled = std::isnan(scale) ? nullptr : &scale;
    Owned made[kResults];
    Error error;
    if constexpr (gradient) {
      error = function_.call(handles[0], handles[1], handles[2], handles[3], handles[4],
                             handles[5], 0.0, node_.is_causal(), mask, scaled, made[0].place(),
                             made[1].place(), made[2].place());
    } else {
      error = function_.call(handles[0], handles[1], handles[2], 0.0, node_.is_causal(), mask, scaled,
                             made[0].place(), made[1].place());
    }
    Interface::get().check(error, name);
    for (size_t i = 0; i < places.size(); ++i) {
      node_.results()[i].take(places[i], made[i], range(gradient && i > 0), copy_);
    }
  }

  Function<std::conditional_t<gradient, Backward, Forward>> function_;
  Copy copy_;
  Node node_;
};

}  // namespace torch_library

static const Operators<torch_library::Attention<false>,
                       torch_library::Attention<true>>
    torch_attention_operators;
