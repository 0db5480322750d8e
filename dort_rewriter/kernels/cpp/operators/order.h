// Order: the places of the first elements of each row (the last axis) in an order of its elements.
//
// Which of equal elements comes first is what torch's kernels for the CPU make of them: they sort
// and select with the C++ standard library. So does this one, with the same calls, and a compiler
// of the same family has the same library. NaN counts as greater than all other numbers.
#pragma once

#include <utility>

#include "kernel.h"

class Order : public Operator {
 public:
  static constexpr const char* name = "Order";
  static constexpr ElementType inputs[] = {kAny, kInt64};  // elements, how many of each row
  static constexpr ElementType outputs[] = {kInt64};

  explicit Order(const Info& info)
      : largest_(info.flag("largest", true)),
        select_(info.flag("select", true)),
        sorted_(info.flag("sorted", true)) {
    by_type(info.input_type(0), [](auto) {});
  }

  void compute(const Context& context) const {
    Tensor x = context.input(0), wanted = context.input(1);
    if (x.shape.empty() || wanted.size() != 1) {
      fail(kInvalidArgument, "Order takes rows, and one number");
    }
    Shape shape = x.shape;
    const int64_t n = shape.back(), k = *wanted.as<int64_t>();
    if (k < 0 || k > n) fail(kInvalidArgument, "selected index k out of range");
    shape[shape.size() - 1] = k;
    int64_t* to = static_cast<int64_t*>(context.output(0, shape));
    if (count(shape) == 0) return;
    const int64_t rows = count(shape.begin(), shape.end() - 1);
    by_type(x.type, [&](auto zero) {
      using T = decltype(zero);
      const T* from = x.as<T>();
      context.parallel(rows, part_of(n, 4096), [=](int64_t begin, int64_t end) {
        std::vector<std::pair<T, int64_t>> row(n);
        for (int64_t r = begin; r < end; ++r) {
          for (int64_t i = 0; i < n; ++i) row[i] = {from[r * n + i], i};
          if (largest_) {
            arrange(row, k, [](const auto& a, const auto& b) {
              return (is_nan(a.first) && !is_nan(b.first)) || a.first > b.first;
            });
          } else {
            arrange(row, k, [](const auto& a, const auto& b) {
              return (!is_nan(a.first) && is_nan(b.first)) || a.first < b.first;
            });
          }
          for (int64_t i = 0; i < k; ++i) to[r * k + i] = row[i].second;
        }
      });
    });
  }

 private:
  template <typename T>
  static bool is_nan(T value) {
    return value != value;
  }

  template <typename F>
  static void by_type(ElementType type, F&& work) {
    if (type == kFloat) {
      work(float{});
    } else if (type == kDouble) {
      work(double{});
    } else if (type == kInt64) {
      work(int64_t{});
    } else {
      fail(kNotImplemented, "Order takes float, double or int64");
    }
  }

  // NOTE: the calls, and the sizes at which one takes another, are those of torch: another order
  // is as right, but has other elements first.
  template <typename Row, typename Before>
  void arrange(Row& row, int64_t k, Before before) const {
    constexpr int64_t kFewTimes = 64;
    const auto first = row.begin(), end = row.end();
    if (!select_) {
      std::sort(first, end, before);
    } else if (k <= static_cast<int64_t>(row.size()) / kFewTimes) {
      std::partial_sort(first, first + k, end, before);
    } else {
      std::nth_element(first, first + k - 1, end, before);
      if (sorted_) std::sort(first, first + k - 1, before);
    }
  }

  bool largest_, select_, sorted_;
};

static const Operators<Order> order_operators;
