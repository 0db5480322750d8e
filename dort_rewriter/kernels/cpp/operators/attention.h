// Attention, a block of the scores at a time: what torch's flash kernel computes.
#pragma once

#include "attention_blocks.h"
#include "functions.h"
#include "sums.h"

// Which numbers are multiplied is torch's choice: a causal mask leaves out the keys behind its block
// of queries, others are multiplied with zero, which gives NaN where values are not finite.
class Attention : public Operator {
 public:
  static constexpr const char* name = "Attention";
  static constexpr ElementType inputs[] = {kEach};
  static constexpr ElementType outputs[] = {kEach};
  static constexpr bool variadic = true;
  static constexpr bool never_fails = true;

  explicit Attention(const Info& info) : blocks_(info) {}

  void compute(const Context& context) const {
    const Call call = blocks_.call(context);
    const auto& of = call.of;
    const int64_t high = (of.queries + kQueries - 1) / kQueries, rows = (of.queries + high - 1) / high;
    const int64_t of_unit = of.heads / of.groups * high, total = of.batch * of.groups * of_unit;
    const int64_t most = context.threads() > 1 ? kPartsOfAThread * context.threads() : 1;
    const int64_t parts = std::min(total, threads_for(2 * Blocks::work(call), kWorthAPart, most));
    context.share(parts, [&](int64_t part) {
      Room room(call, rows);
      int64_t unit = -1;  // whose keys and values were read last
      for (int64_t i = part * total / parts; i < (part + 1) * total / parts; ++i) {
        const int64_t batch = i / of_unit / of.groups, group = i / of_unit % of.groups;
        if (i / of_unit != unit) read_keys(call, batch, group, room);
        unit = i / of_unit;
        const int64_t head = (group * of_unit + i % of_unit) / high, first = i % high * rows;
        attend(call, batch, head, first, std::min(rows, of.queries - first), room);
      }
    });
  }

 private:
  using Blocks = AttentionBlocks<false>;
  using Call = Blocks::Call;
  using Block = Blocks::Block;
  enum Output : size_t { kOut, kSums };

  // The multiplications that a part is worth; parts of a thread, so that none waits long for another.
  static constexpr double kWorthAPart = 300e3;
  static constexpr int64_t kPartsOfAThread = 2;

  // The queries of a block.
  static constexpr int64_t kQueries = 64;

  // Where one thread computes.
  struct Room {
    products::Memory<> floats, widened[3];
    products::Right keys, values;
    bool is_finite = true;  // of all values
    int64_t step, width;    // from row to row of a block, of the result
    float *scores, *out, *highest, *sums;

    Room(const Call& call, int64_t rows)
        : step(Blocks::row_of(call)), width(products::padded(call.of.width)) {
      scores = floats.of(rows * (step + width + 2));
      out = scores + rows * step;
      highest = out + rows * width;
      sums = highest + rows;
    }
  };

  void read_keys(const Call& call, int64_t batch, int64_t group, Room& room) const {
    const int64_t keys = call.of.keys, width = call.of.width;
    const auto key = blocks_.rows(call, Blocks::kKey, batch, group, 0, keys, room.widened[0]);
    const auto value = blocks_.rows(call, Blocks::kValue, batch, group, 0, keys, room.widened[1]);
    room.keys.take(key.turned(), width, keys);
    room.values.take(value, keys, width);
    room.is_finite =
        !blocks_.node().is_causal() || blocks_.are_finite(call, Blocks::kValue, batch, group, 0, keys);
  }

  // The results of some queries of a head.
  void attend(const Call& call, int64_t batch, int64_t head, int64_t first, int64_t rows, Room& room) const {
    const int64_t width = call.of.width;
    const auto query = blocks_.rows(call, Blocks::kQuery, batch, head, first, rows, room.widened[2]);
    std::fill_n(room.highest, rows, -HUGE_VALF);
    std::fill_n(room.sums, rows, 0.0f);
    const bool leaves_out = room.is_finite && !blocks_.node().has_mask();
    const int64_t last =
        leaves_out ? blocks_.keys_seen(call, first + rows) : blocks_.keys_of_torch(call, first);
    for (int64_t from = 0, columns; from < last; from += columns) {
      columns = Blocks::columns_from(from, last);
      products::multiply(rows, width, blocks_.scale(call), query, {room.keys, 0, from, from + columns}, false,
                         room.scores, room.step);
      for (int64_t r = 0; r < rows; ++r) {
        weigh(call, Block{batch, head, first, rows, from, columns}, r, room);
      }
      products::multiply(rows, columns, 1, {room.scores, room.step, 1}, {room.values, from}, from > 0,
                         room.out, room.width);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float &highest = room.highest[r], &sum = room.sums[r], *out = room.out + r * room.width;
      if (highest == -HUGE_VALF) highest = 0, sum = 1;  // sees nothing
      const float share = 1 / sum;
      for (int64_t i = 0; i < room.width; ++i) out[i] *= share;
      sum = highest + std::log(sum);
    }
    blocks_.write(call, kOut, batch, head, first, rows, room.out, room.width);
    if (call.places.size() <= kSums || call.places[kSums].data == nullptr) return;
    const Shape step = blocks_.node().results()[kSums].strides(call.places[kSums]);
    float* to = static_cast<float*>(call.places[kSums].data) + batch * step[0] + head * step[1];
    for (int64_t r = 0; r < rows; ++r) to[(first + r) * step[2]] = room.sums[r];
  }

  // The exponentials of a row of scores over the largest so far, which those before are shrunk to.
  void weigh(const Call& call, const Block& block, int64_t row, Room& room) const {
    float* scores = room.scores + row * room.step;
    const int64_t end = products::padded(block.columns);
    std::fill(scores + blocks_.seen(block, row), scores + end, -HUGE_VALF);
    blocks_.add_mask(call, block, row, scores);
    const float before = room.highest[row];
    float highest = std::max(before, largest(scores, end));
    const auto is_nan = [](float score) { return std::isnan(score); };
    if (highest == -HUGE_VALF && std::any_of(scores, scores + end, is_nan)) highest = NAN;
    float sum = 0;
    if (highest == -HUGE_VALF) {
      std::fill_n(scores, end, 0.0f);
      if (block.from == 0) return;
    } else if (highest == HUGE_VALF) {
      for (int64_t i = 0; i < end; ++i) {
        sum += scores[i] = weigh_infinity(scores[i], block.from + i, call.of.keys);
      }
    } else {
      sum = exponentials(scores, end, highest);
    }
    const float shrunk = highest == before ? 1 : exponential(before - highest);
    room.sums[row] = room.sums[row] * shrunk + sum;
    room.highest[row] = highest;
    float* out = room.out + row * room.width;
    if (block.from == 0 || shrunk == 1) return;
    for (int64_t i = 0; i < room.width; ++i) out[i] *= shrunk;
  }

  // The same where the largest is an infinity: torch's vectors make one of its exponential, and NaN
  // comes of those that fill none. The sums, which the gradient reads, tell them apart.
  static float weigh_infinity(float score, int64_t key, int64_t keys) {
    if (score != HUGE_VALF) return std::isnan(score) ? score : 0;
    const int64_t at = key % Blocks::kKeysOfTorch, size = std::min(Blocks::kKeysOfTorch, keys - (key - at));
    return at < size / kWidest * kWidest ? HUGE_VALF : NAN;
  }

  // The exponentials of a row in the place of its numbers, and their sum.
  ONCE static float exponentials(float* row, int64_t n, float highest) {
    float lanes[kWidest] = {};
    for (int64_t i = 0; i < n; i += kWidest) {
      for (int64_t k = 0; k < kWidest; ++k) {
        row[i + k] = exponential(row[i + k] - highest);
        lanes[k] += row[i + k];
      }
    }
    float sum = 0;
    for (int64_t k = 0; k < kWidest; ++k) sum += lanes[k];
    return sum;
  }

  static float largest(const float* row, int64_t n) {
    float lanes[kWidest];
    std::copy_n(row, kWidest, lanes);
    for (int64_t i = kWidest; i < n; i += kWidest) {
      for (int64_t k = 0; k < kWidest; ++k) lanes[k] = row[i + k] > lanes[k] ? row[i + k] : lanes[k];
    }
    float found = lanes[0];
    for (int64_t k = 1; k < kWidest; ++k) found = lanes[k] > found ? lanes[k] : found;
    return found;
  }

  Blocks blocks_;
};

static const Operators<Attention> attention_operators;
