// The gradient of attention, a block of the scores at a time: what torch's flash kernel computes.
//
// The gradients of keys and values are summed in float over all queries, and rounded once.
#pragma once

#include "attention_blocks.h"
#include "functions.h"
#include "mkl.h"
#include "sums.h"

// The products of a block whose factors are floats.
class FloatFactors {
 public:
  static constexpr const char* name = "AttentionGrad";
  static constexpr const char* library = "own";
  static constexpr int64_t kQueries = 64;  // of a block: measured
  using Blocks = AttentionBlocks<true>;
  using Matrix = products::Matrix;

  static void check(const Info&) {}

  FloatFactors(const Blocks& blocks, const Blocks::Call& call) : blocks_(blocks), call_(call) {}

  void read_keys(int64_t batch, int64_t group) {
    const int64_t keys = call_.of.keys, width = call_.of.width;
    const auto key = blocks_.rows(call_, Blocks::kKey, batch, group, 0, keys, widened_[0]);
    const auto value = blocks_.rows(call_, Blocks::kValue, batch, group, 0, keys, widened_[1]);
    keys_.take(key, keys, width);
    turned_keys_.take(key.turned(), width, keys);
    turned_values_.take(value.turned(), width, keys);
  }

  void read_queries(int64_t batch, int64_t head, int64_t first, int64_t rows) {
    query_ = blocks_.rows(call_, Blocks::kQuery, batch, head, first, rows, widened_[2]);
    grad_ = blocks_.rows(call_, 0, batch, head, first, rows, widened_[3]);
    queries_.take(query_, rows, call_.of.width);
    grads_.take(grad_, rows, call_.of.width);
  }

  // The products of queries and keys, and of gradients and values.
  void multiply_widths(const Blocks::Block& of, float factor, float* scores, float* grads,
                       int64_t step) const {
    const int64_t width = call_.of.width, end = of.from + of.columns;
    products::multiply(of.rows, width, factor, query_, {turned_keys_, 0, of.from, end}, false, scores, step);
    products::multiply(of.rows, width, 1, grad_, {turned_values_, 0, of.from, end}, false, grads, step);
  }

  // What the scores and their gradients add to the gradients of values, queries and keys.
  void add(const Blocks::Block& of, float factor, const float* scores, const float* grads, int64_t step,
           float* of_value, float* of_query, float* of_key, int64_t next) const {
    const Matrix left{scores, step, 1}, right{grads, step, 1};
    products::multiply(of.columns, of.rows, 1, left.turned(), {grads_}, true, of_value, next);
    products::multiply(of.rows, of.columns, factor, right, {keys_, of.from}, of.from > 0, of_query, next);
    products::multiply(of.columns, of.rows, factor, right.turned(), {queries_}, true, of_key, next);
  }

 private:
  const Blocks& blocks_;
  const Blocks::Call& call_;
  products::Memory<> widened_[4];
  products::Right keys_, turned_keys_, turned_values_, queries_, grads_;
  Matrix query_{}, grad_{};
};

// Those of factors of bfloat16, where MKL multiplies them by instructions for that.
class BfloatFactors {
 public:
  static constexpr const char* name = "MklAttentionGrad";
  static constexpr const char* library = "mkl";
  static constexpr int64_t kQueries = 128;
  using Blocks = AttentionBlocks<true>;
  using Matrix = Mkl::Matrix<Bfloat>;

  static void check(const Info& info) {
    if (info.input_type(0) != kBFloat16) fail(kInvalidArgument, "the factors are of another type");
    Mkl::check<Bfloat>();
  }

  BfloatFactors(const Blocks& blocks, const Blocks::Call& call) : blocks_(blocks), call_(call) {
    const auto& of = call.of;
    for (size_t i = 0; i < Blocks::kMask; ++i) {
      const int64_t step = i == Blocks::kMask - 1 ? 0 : blocks.steps(call, i)[2];
      if (std::max({step, of.queries, of.keys}) > INT32_MAX) {
        fail(kNotImplemented, "MKL counts rows and columns in 32 bits");
      }
    }
  }

  void read_keys(int64_t batch, int64_t group) {
    key_ = rows(Blocks::kKey, batch, group, 0), value_ = rows(Blocks::kValue, batch, group, 0);
  }

  void read_queries(int64_t batch, int64_t head, int64_t first, int64_t) {
    query_ = rows(Blocks::kQuery, batch, head, first), grad_ = rows(0, batch, head, first);
  }

  void multiply_widths(const Blocks::Block& of, float factor, float* scores, float* grads,
                       int64_t step) const {
    const int64_t width = call_.of.width;
    const Mkl& mkl = Mkl::get();
    mkl.multiply(of.rows, of.columns, width, factor, query_, turned(from_row(key_, of.from)), 0, scores,
                 step);
    mkl.multiply(of.rows, of.columns, width, 1, grad_, turned(from_row(value_, of.from)), 0, grads, step);
  }

  void add(const Blocks::Block& of, float factor, const float* scores, const float* grads, int64_t step,
           float* of_value, float* of_query, float* of_key, int64_t next) {
    const int64_t width = call_.of.width, n = of.rows * step;
    Bfloat* left = narrow_.of(2 * n);
    Bfloat* right = left + n;
    for (int64_t r = 0; r < of.rows; ++r) {
      narrow_all(scores + r * step, left + r * step, of.columns);
      narrow_all(grads + r * step, right + r * step, of.columns);
    }
    const Matrix by_scores{left, step, false}, by_grads{right, step, false};
    const Mkl& mkl = Mkl::get();
    mkl.multiply(of.columns, width, of.rows, 1, turned(by_scores), grad_, 1, of_value, next);
    mkl.multiply(of.rows, width, of.columns, factor, by_grads, from_row(key_, of.from), of.from > 0 ? 1 : 0,
                 of_query, next);
    mkl.multiply(of.columns, width, of.rows, factor, turned(by_grads), query_, 1, of_key, next);
  }

 private:
  Matrix rows(size_t i, int64_t batch, int64_t head, int64_t first) const {
    const Shape step = blocks_.steps(call_, i);
    const int64_t begin = batch * step[0] + head * step[1] + first * step[2];
    return {call_.given[i].as<Bfloat>() + begin, step[2], false};
  }

  static Matrix turned(Matrix matrix) { return {matrix.data, matrix.step, !matrix.turned}; }
  static Matrix from_row(Matrix matrix, int64_t i) { return {matrix.row(i), matrix.step, matrix.turned}; }

  const Blocks& blocks_;
  const Blocks::Call& call_;
  Matrix key_{}, value_{}, query_{}, grad_{};
  products::Memory<Bfloat> narrow_;
};

template <class Factors>
class AttentionGrad : public Operator {
 public:
  static constexpr const char* name = Factors::name;
  static constexpr ElementType inputs[] = {kEach};
  static constexpr ElementType outputs[] = {kEach};
  static constexpr bool variadic = true;
  static constexpr const char* library = Factors::library;
  static constexpr bool never_fails = true;

  explicit AttentionGrad(const Info& info) : blocks_(info) { Factors::check(info); }

  void compute(const Context& context) const {
    const Call call = blocks_.call(context);
    const int64_t units = call.of.batch * call.of.groups;
    // Two parts for a thread, so that none waits long for another.
    const int64_t most = context.threads() > 1 ? 2 * context.threads() : 1;
    const int64_t parts = std::min(units, threads_for(5 * Blocks::work(call), kWorthAPart, most));
    context.share(
        parts, [&](int64_t part) { differentiate(call, part * units / parts, (part + 1) * units / parts); });
  }

 private:
  using Blocks = AttentionBlocks<true>;
  using Call = Blocks::Call;
  using Block = Blocks::Block;
  enum Input : size_t { kGrad, kOut = 4, kSums };
  enum Output : size_t { kOfQuery, kOfKey, kOfValue };

  // The multiplications that a part is worth.
  static constexpr double kWorthAPart = 300e3;

  // Where one thread computes.
  struct Room {
    products::Memory<> floats;
    Factors factors;
    bool is_finite = true;  // of all keys and values
    int64_t step, width;    // from row to row of a block, of a gradient
    float *scores, *grads, *of_query, *of_key, *of_value, *dots;

    Room(const Blocks& blocks, const Call& call)
        : factors(blocks, call), step(Blocks::row_of(call)), width(products::padded(call.of.width)) {
      const int64_t rows = std::min(Factors::kQueries, call.of.queries), keys = call.of.keys;
      scores = floats.of(rows * (2 * step + width + 1) + 2 * keys * width);
      grads = scores + rows * step;
      of_query = grads + rows * step;
      of_key = of_query + rows * width;
      of_value = of_key + keys * width;
      dots = of_value + keys * width;
    }
  };

  // The gradients of all queries that read some heads of keys.
  void differentiate(const Call& call, int64_t begin, int64_t end) const {
    const auto& of = call.of;
    Room room(blocks_, call);
    const int64_t repeats = of.heads / of.groups;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t batch = unit / of.groups, group = unit % of.groups;
      room.factors.read_keys(batch, group);
      room.is_finite =
          !blocks_.node().is_causal() || (blocks_.are_finite(call, Blocks::kKey, batch, group, 0, of.keys) &&
                                          blocks_.are_finite(call, Blocks::kValue, batch, group, 0, of.keys));
      std::fill_n(room.of_key, 2 * of.keys * room.width, 0.0f);
      for (int64_t h = group * repeats; h < (group + 1) * repeats; ++h) {
        for (int64_t first = 0; first < of.queries; first += Factors::kQueries) {
          const int64_t rows = std::min(Factors::kQueries, of.queries - first);
          room.factors.read_queries(batch, h, first, rows);
          multiply_rows(call, batch, h, first, rows, room.dots);
          const bool leaves_out = room.is_finite && are_finite(call, batch, h, first, rows, room.dots);
          const int64_t last =
              leaves_out ? blocks_.keys_seen(call, first + rows) : blocks_.keys_of_torch(call, first);
          for (int64_t from = 0, columns; from < last; from += columns) {
            columns = Blocks::columns_from(from, last);
            add(call, Block{batch, h, first, rows, from, columns}, room);
          }
          blocks_.write(call, kOfQuery, batch, h, first, rows, room.of_query, room.width);
        }
      }
      blocks_.write(call, kOfKey, batch, group, 0, of.keys, room.of_key, room.width);
      blocks_.write(call, kOfValue, batch, group, 0, of.keys, room.of_value, room.width);
    }
  }

  // Add what a block of scores adds to the gradients.
  void add(const Call& call, const Block& block, Room& room) const {
    const float factor = blocks_.scale(call);
    room.factors.multiply_widths(block, factor, room.scores, room.grads, room.step);
    const Shape step = blocks_.steps(call, kSums);
    const Tensor& all_sums = call.given[kSums];
    const float* sums = all_sums.as<float>() + block.batch * step[0] + block.head * step[1];
    for (int64_t r = 0; r < block.rows; ++r) {
      float *scores = room.scores + r * room.step, *grads = room.grads + r * room.step;
      blocks_.add_mask(call, block, r, scores);
      const int64_t count = blocks_.seen(block, r);
      const float sum = sums[(block.first + r) * step[2]], dot = room.dots[r];
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        scores[i] = exponential(scores[i] - sum);
        grads[i] = scores[i] * (grads[i] - dot);
      }
#pragma GCC ivdep
      for (int64_t i = count; i < block.columns; ++i) {  // not zero where the gradient is no number
        scores[i] = 0;
        grads[i] = 0 * (grads[i] - dot);
      }
    }
    room.factors.add(block, factor, room.scores, room.grads, room.step,
                     room.of_value + block.from * room.width, room.of_query,
                     room.of_key + block.from * room.width, room.width);
  }

  // Whether all that is known of some queries is finite, where that decides which keys are multiplied.
  bool are_finite(const Call& call, int64_t batch, int64_t head, int64_t first, int64_t rows,
                  const float* dots) const {
    if (!blocks_.node().is_causal()) return true;
    const Shape step = blocks_.steps(call, kSums);
    const Tensor& all_sums = call.given[kSums];
    const float* sums = all_sums.as<float>() + batch * step[0] + head * step[1] + first * step[2];
    float none = 0;
    for (int64_t r = 0; r < rows; ++r) none += (dots[r] + sums[r * step[2]]) * 0;
    return none == 0 && blocks_.are_finite(call, Blocks::kQuery, batch, head, first, rows) &&
           blocks_.are_finite(call, kGrad, batch, head, first, rows);
  }

  // The sums of the products of rows of the result and of its gradient.
  void multiply_rows(const Call& call, int64_t batch, int64_t head, int64_t first, int64_t rows,
                     float* dots) const {
    const Floats grads(call.given[kGrad]), outs(call.given[kOut]);
    const Shape of_grad = blocks_.steps(call, kGrad), of_out = blocks_.steps(call, kOut);
    for (int64_t r = 0; r < rows; ++r) {
      auto row = [&](const Floats& floats, const Shape& step, size_t place) {
        const int64_t begin = batch * step[0] + head * step[1] + (first + r) * step[2];
        return floats.at(begin, call.of.width, place);
      };
      const float *a = row(grads, of_grad, 0), *b = row(outs, of_out, 1);
      dots[r] = static_cast<float>(sum_of(call.of.width, [=](int64_t i) { return a[i] * b[i]; }));
    }
  }

  Blocks blocks_;
};

static const Operators<AttentionGrad<FloatFactors>, AttentionGrad<BfloatFactors>> attention_grad_operators;
