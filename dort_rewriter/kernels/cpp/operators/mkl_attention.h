// The gradient of attention by MKL's products, a block of the scores at a time.
//
// What torch's flash kernel computes; the gradients of keys and values are summed in float over all
// queries, and rounded once.
#pragma once

#include <memory>
#include <type_traits>

#include "attention.h"
#include "floats.h"
#include "functions.h"
#include "mkl.h"
#include "sums.h"

class MklAttentionGrad : public Operator {
 public:
  static constexpr const char* name = "MklAttentionGrad";
  static constexpr ElementType inputs[] = {kEach};
  static constexpr ElementType outputs[] = {kEach};
  static constexpr bool variadic = true;
  static constexpr const char* library = "mkl";
  static constexpr bool never_fails = true;

  // With `of_bfloat16` the factors of products are of that type, else they are floats.
  explicit MklAttentionGrad(const Info& info)
      : node_(info), of_bfloat16_(info.flag("of_bfloat16", false)) {
    if (of_bfloat16_ && node_.type() != kBFloat16) {
      fail(kInvalidArgument, "the factors are of another type");
    }
    of_bfloat16_ ? Mkl::check<Bfloat>() : Mkl::check<float>();
  }

  void compute(const Context& context) const {
    const Call call = node_.call(context);
    const auto& of = call.of;
    for (size_t i = 0; i <= kOut; ++i) {
      if (std::max({steps(call, i)[2], of.queries, of.keys}) > INT32_MAX) {
        fail(kNotImplemented, "MKL counts rows and columns in 32 bits");
      }
    }
    const int64_t units = of.batch * of.groups;
    const double work = double(of.batch) * double(of.heads) * double(of.queries) *
                        double(of.keys) * double(of.width) * 5;
    // Two parts for a thread, so that none waits long for another.
    const int64_t most = context.threads() > 1 ? 2 * context.threads() : 1;
    const int64_t parts = std::min(units, threads_for(work, kWorthAPart, most));
    context.share(parts, [&](int64_t part) {
      const int64_t begin = part * units / parts, end = (part + 1) * units / parts;
      of_bfloat16_ ? differentiate<Bfloat>(call, begin, end)
                   : differentiate<float>(call, begin, end);
    });
  }

 private:
  using Node = torch_library::AttentionNode<true>;
  using Call = Node::Call;
  enum Input : size_t { kGrad, kQuery, kKey, kValue, kOut, kSums, kMask };
  enum Output : size_t { kOfQuery, kOfKey, kOfValue };

  // The multiplications that a part is worth.
  static constexpr double kWorthAPart = 300e3;
  // The queries and keys of a block of scores, by the type of the factors: measured.
  template <typename T>
  static constexpr int64_t kQueries = std::is_same_v<T, float> ? 64 : 128;
  static constexpr int64_t kKeys = 256;

  template <typename T>
  using Matrix = Mkl::Matrix<T>;

  // Memory that is not written before it is used.
  template <typename T>
  struct Memory {
    std::unique_ptr<T[]> data;
    T* of(int64_t n) {
      data.reset(new T[static_cast<size_t>(n)]);
      return data.get();
    }
  };

  // Where one thread computes.
  template <typename T>
  struct Room {
    Memory<float> floats;
    Memory<T> factors;
    Memory<float> widened[4];
    float *scores, *grads, *of_query, *of_key, *of_value, *dots;
    T *left, *right;  // the scores and their gradients as factors
    int64_t step;     // from row to row of a block

    explicit Room(const torch_library::Attended& of) {
      const int64_t rows = std::min(kQueries<T>, of.queries), width = of.width;
      step = (std::min(kKeys, of.keys) + 31) / 32 * 32;
      scores = floats.of(rows * (2 * step + width + 1) + 2 * of.keys * width);
      grads = scores + rows * step;
      of_query = grads + rows * step;
      of_key = of_query + rows * width;
      of_value = of_key + of.keys * width;
      dots = of_value + of.keys * width;
      if constexpr (std::is_same_v<T, float>) {
        left = scores, right = grads;
      } else {
        left = factors.of(2 * rows * step);
        right = left + rows * step;
      }
    }
  };

  Shape steps(const Call& call, size_t i) const {
    return node_.view(i).strides(call.given[i].shape);
  }

  float scale(const Call& call) const {
    const double given = node_.scale();
    return static_cast<float>(std::isnan(given) ? 1 / std::sqrt(double(call.of.width)) : given);
  }

  // Some rows of a head, where they lie, or widened.
  template <typename T>
  Matrix<T> rows(const Call& call, size_t i, int64_t batch, int64_t head, int64_t first,
                 int64_t count, Memory<float>& memory) const {
    const Tensor& tensor = call.given[i];
    const Shape step = steps(call, i);
    const int64_t begin = batch * step[0] + head * step[1] + first * step[2];
    if constexpr (std::is_same_v<T, float>) {
      if (tensor.type != kFloat) {
        const int64_t width = call.of.width;
        float* to = memory.of(count * width);
        for (int64_t r = 0; r < count; ++r) {
          widen_row(tensor.type, tensor.as<uint16_t>() + begin + r * step[2], to + r * width,
                    width);
        }
        return {to, width, false};
      }
    }
    return {tensor.as<T>() + begin, step[2], false};
  }

  template <typename T>
  static Matrix<T> turned(Matrix<T> matrix) {
    matrix.turned = !matrix.turned;
    return matrix;
  }

  template <typename T>
  static Matrix<T> from_row(Matrix<T> matrix, int64_t row) {
    matrix.data = matrix.row(row);
    return matrix;
  }

  // A block of the scores of a head: its queries and keys.
  struct Block {
    int64_t batch, head, first, rows, from, columns;
  };

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

  // The gradients of all queries that read some heads of keys.
  template <typename T>
  void differentiate(const Call& call, int64_t begin, int64_t end) const {
    const auto& of = call.of;
    Room<T> room(of);
    const int64_t repeats = of.heads / of.groups;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t batch = unit / of.groups, group = unit % of.groups;
      const auto key = rows<T>(call, kKey, batch, group, 0, of.keys, room.widened[0]);
      const auto value = rows<T>(call, kValue, batch, group, 0, of.keys, room.widened[1]);
      std::fill_n(room.of_key, 2 * of.keys * of.width, 0.0f);
      for (int64_t h = group * repeats; h < (group + 1) * repeats; ++h) {
        for (int64_t first = 0; first < of.queries; first += kQueries<T>) {
          const int64_t n = std::min(kQueries<T>, of.queries - first);
          const auto query = rows<T>(call, kQuery, batch, h, first, n, room.widened[2]);
          const auto grad = rows<T>(call, kGrad, batch, h, first, n, room.widened[3]);
          multiply_rows(call, batch, h, first, n, room.dots);
          const int64_t last = keys_seen(call, first + n);
          for (int64_t from = 0; from < last; from += kKeys) {
            const Block block{batch, h, first, n, from, std::min(kKeys, last - from)};
            add(call, block, query, grad, from_row(key, from), from_row(value, from), room);
          }
          write(call, kOfQuery, batch, h, first, n, room.of_query);
        }
      }
      write(call, kOfKey, batch, group, 0, of.keys, room.of_key);
      write(call, kOfValue, batch, group, 0, of.keys, room.of_value);
    }
  }

  // Add what a block of scores adds to the gradients.
  template <typename T>
  void add(const Call& call, const Block& block, Matrix<T> query, Matrix<T> grad, Matrix<T> key,
           Matrix<T> value, Room<T>& room) const {
    const Mkl& mkl = Mkl::get();
    const int64_t m = block.rows, n = block.columns, width = call.of.width;
    const float factor = scale(call);
    mkl.multiply(m, n, width, factor, query, turned(key), 0, room.scores, room.step);
    mkl.multiply(m, n, width, 1, grad, turned(value), 0, room.grads, room.step);
    const Shape step = steps(call, kSums);
    const float* sums = call.given[kSums].as<float>() + block.batch * step[0] + block.head * step[1];
    for (int64_t r = 0; r < m; ++r) {
      float *scores = room.scores + r * room.step, *grads = room.grads + r * room.step;
      add_mask(call, block, r, scores);
      const int64_t count = seen(block, r);
      const float sum = sums[(block.first + r) * step[2]], dot = room.dots[r];
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        scores[i] = exponential(scores[i] - sum);
        grads[i] = scores[i] * (grads[i] - dot);
      }
#pragma GCC ivdep
      for (int64_t i = count; i < n; ++i) {  // not zero where the gradient is no number
        scores[i] = 0;
        grads[i] = 0 * (grads[i] - dot);
      }
      if constexpr (!std::is_same_v<T, float>) {
        narrow_all(scores, room.left + r * room.step, n);
        narrow_all(grads, room.right + r * room.step, n);
      }
    }
    const Matrix<T> left{room.left, room.step, false}, right{room.right, room.step, false};
    float* of_key = room.of_key + block.from * width;
    float* of_value = room.of_value + block.from * width;
    const float kept = block.from > 0 ? 1 : 0;
    mkl.multiply(n, width, m, 1, turned(left), grad, 1, of_value, width);
    mkl.multiply(m, width, n, factor, right, key, kept, room.of_query, width);
    mkl.multiply(n, width, m, factor, turned(right), query, 1, of_key, width);
  }

  // The sums of the products of rows of the result and of its gradient.
  void multiply_rows(const Call& call, int64_t batch, int64_t head, int64_t first, int64_t rows,
                     float* dots) const {
    const Floats grads(call.given[kGrad]), outs(call.given[kOut]);
    const Shape of_grad = steps(call, kGrad), of_out = steps(call, kOut);
    for (int64_t r = 0; r < rows; ++r) {
      auto row = [&](const Floats& floats, const Shape& step, size_t place) {
        const int64_t begin = batch * step[0] + head * step[1] + (first + r) * step[2];
        return floats.at(begin, call.of.width, place);
      };
      const float *a = row(grads, of_grad, 0), *b = row(outs, of_out, 1);
      dots[r] = static_cast<float>(sum_of(call.of.width, [=](int64_t i) { return a[i] * b[i]; }));
    }
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
             const float* from) const {
    if (i >= call.places.size() || call.places[i].data == nullptr) return;
    const Shape step = node_.results()[i].strides(call.places[i]);
    const Written to(node_.type(), call.places[i].data);
    const int64_t width = call.of.width;
    for (int64_t r = 0; r < rows; ++r, from += width) {
      const int64_t begin = batch * step[0] + head * step[1] + (first + r) * step[2];
      if (step[3] == 1) {
        to.put(begin, width, 2, [=](float* row) { std::copy_n(from, width, row); });
      } else {
        for (int64_t e = 0; e < width; ++e) to.put(begin + e * step[3], from[e]);
      }
    }
  }

  Node node_;
  bool of_bfloat16_;
};

static const Operators<MklAttentionGrad> mkl_attention_operators;
