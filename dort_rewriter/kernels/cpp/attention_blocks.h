// Blocks of the scores of attention, which kernels compute one after another.
#pragma once

#include <algorithm>

#include "attention.h"
#include "floats.h"
#include "products.h"
#include "sums.h"

template <bool gradient>
class AttentionBlocks {
 public:
  using Node = torch_library::AttentionNode<gradient>;
  using Call = typename Node::Call;
  using Matrix = products::Matrix;
  static constexpr size_t kQuery = Node::kQuery, kKey = kQuery + 1, kValue = kQuery + 2;
  static constexpr size_t kMask = Node::kFixed;

  // The keys of a block. One that would have few more takes them as well.
  static constexpr int64_t kKeys = 8 * products::kVectors * kWidest;

  explicit AttentionBlocks(const Info& info) : node_(info, false) {}

  const Node& node() const { return node_; }
  Call call(const Context& context) const { return node_.call(context); }
  Shape steps(const Call& call, size_t i) const { return node_.view(i).strides(call.given[i].shape); }

  float scale(const Call& call) const {
    const double given = node_.scale();
    return static_cast<float>(std::isnan(given) ? 1 / std::sqrt(double(call.of.width)) : given);
  }

  // The multiplications of one product of all scores.
  static double work(const Call& call) {
    const auto& of = call.of;
    return double(of.batch) * double(of.heads) * double(of.queries) * double(of.keys) * double(of.width);
  }

  // Some rows of a head, where they lie, or widened.
  Matrix rows(const Call& call, size_t i, int64_t batch, int64_t head, int64_t first, int64_t count,
              products::Memory<>& memory) const {
    const Tensor& tensor = call.given[i];
    const Shape step = steps(call, i);
    const int64_t begin = batch * step[0] + head * step[1] + first * step[2], width = call.of.width;
    if (tensor.type == kFloat) return {tensor.as<float>() + begin, step[2], 1};
    float* to = memory.of(count * width);
    for (int64_t r = 0; r < count; ++r) {
      widen_row(tensor.type, tensor.as<uint16_t>() + begin + r * step[2], to + r * width, width);
    }
    return {to, width, 1};
  }

  // A block of the scores of a head: its queries and keys.
  struct Block {
    int64_t batch, head, first, rows, from, columns;
  };

  // The columns of the block that begins at a key, of those up to a last one.
  static int64_t columns_from(int64_t from, int64_t last) {
    return last - from <= kKeys + kWidest ? last - from : kKeys;
  }

  // From row to row of a block.
  static int64_t row_of(const Call& call) {
    constexpr int64_t kAtOnce = products::kVectors * kWidest;
    return (std::min(call.of.keys, kKeys + kWidest) + kAtOnce - 1) / kAtOnce * kAtOnce;
  }

  // How many keys of a block the query of a row sees.
  int64_t seen(const Block& block, int64_t row) const {
    if (!node_.is_causal()) return block.columns;
    const int64_t last = block.first + row + 1 - block.from;
    return std::max<int64_t>(0, std::min(last, block.columns));
  }

  // The keys that the last of some queries sees.
  int64_t keys_seen(const Call& call, int64_t queries) const {
    return node_.is_causal() ? std::min(queries, call.of.keys) : call.of.keys;
  }

  // The keys that torch multiplies for the query of a row, with zero where it does not see them:
  // blocks of which one is seen. That is NaN where some number is not finite.
  int64_t keys_of_torch(const Call& call, int64_t row) const {
    const int64_t queries = call.of.queries, block = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
    const int64_t seen = keys_seen(call, std::min((row / block + 1) * block, queries));
    return std::min((seen + kKeysOfTorch - 1) / kKeysOfTorch * kKeysOfTorch, call.of.keys);
  }
  static constexpr int64_t kKeysOfTorch = 512;

  // Whether all numbers of some rows of a head are finite.
  bool are_finite(const Call& call, size_t i, int64_t batch, int64_t head, int64_t first,
                  int64_t count) const {
    const Floats floats(call.given[i]);
    const Shape step = steps(call, i);
    double none = 0;
    for (int64_t r = first; r < first + count; ++r) {
      const float* row = floats.at(batch * step[0] + head * step[1] + r * step[2], call.of.width, 0);
      none += sum_of(call.of.width, [=](int64_t e) { return row[e] * 0; });
    }
    return none == 0;
  }

  // Add the mask to a row of the scores.
  void add_mask(const Call& call, const Block& block, int64_t row, float* scores) const {
    if (!node_.has_mask()) return;
    const Shape &sizes = call.shapes[kMask], step = steps(call, kMask);
    const int64_t at[] = {block.batch, block.head, block.first + row, block.from};
    const size_t missing = 4 - sizes.size();
    int64_t begin = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] != 1) begin += at[d + missing] * step[d];
    }
    const Floats mask(call.given[kMask]);
    const int64_t along = sizes.back() == 1 ? 0 : step[sizes.size() - 1];
    if (along == 1) {
      const float* values = mask.at(begin, block.columns, 0);
#pragma GCC ivdep
      for (int64_t i = 0; i < block.columns; ++i) scores[i] += values[i];
    } else {
      for (int64_t i = 0; i < block.columns; ++i) scores[i] += *mask.at(begin + i * along, 1, 0);
    }
  }

  // Write rows of a head of a result.
  void write(const Call& call, size_t i, int64_t batch, int64_t head, int64_t first, int64_t rows,
             const float* from, int64_t next) const {
    if (i >= call.places.size() || call.places[i].data == nullptr) return;
    const Shape step = node_.results()[i].strides(call.places[i]);
    const Written to(node_.type(), call.places[i].data);
    const int64_t width = call.of.width;
    for (int64_t r = 0; r < rows; ++r, from += next) {
      const int64_t begin = batch * step[0] + head * step[1] + (first + r) * step[2];
      if (step[3] == 1) {
        to.put(begin, width, 2, [=](float* row) { std::copy_n(from, width, row); });
      } else {
        for (int64_t e = 0; e < width; ++e) to.put(begin + e * step[3], from[e]);
      }
    }
  }

 private:
  Node node_;
};
