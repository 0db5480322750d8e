// Products of matrices by torch's kernels: mm, bmm, and with a tensor that is added.
//
// Transposed inputs are read as they lie, results are written where ONNX Runtime wants them.
//
// NOTE: torch makes primitives of oneDNN, which takes as long as a small product. Where a node says
// `small_by_mkl`, MKL multiplies small matrices of bfloat16, and the results are rounded once.
#pragma once

#include "floats.h"
#include "mkl.h"
#include "torch_library.h"
#include "torch_threads.h"

template <bool batched, bool added>
class TorchProduct : public Operator {
 public:
  static constexpr const char* name =
      batched ? (added ? "baddbmm" : "bmm") : (added ? "addmm" : "mm");
  // what is added, if anything, and two factors, all of one type; the first one may be one matrix
  // for all batches
  static constexpr ElementType inputs[] = {kAny};
  static constexpr ElementType outputs[] = {kAny};
  static constexpr bool variadic = true;
  static constexpr bool never_fails = true;
  static constexpr const char* layouts = "transposed";
  static constexpr const char* library = "torch";

  explicit TorchProduct(const Info& info) : out_(named("_out")) {
    if (info.inputs() != 2 + added || info.outputs() != 1) {
      fail(kInvalidArgument, "a product has two factors and one result");
    }
    for (size_t i = 0; i < 2 + added; ++i) views_[i] = torch_library::View(info, i);
    ElementType type = views_[0].type();
    if (type != kFloat && type != kFloat16 && type != kBFloat16) {
      fail(kNotImplemented, "products are of float, float16 and bfloat16");
    }
    result_ = torch_library::View(type, views_[0].number());
    if (added) {
      beta_ = info.number("beta");
      alpha_ = info.number("alpha");
    }
    torch_library::Interface::get();
    by_mkl_ = info.flag("small_by_mkl", false);
    if (by_mkl_) {
      if (batched || type != kBFloat16) fail(kInvalidArgument, "MKL multiplies two of bfloat16");
      Mkl::check<Bfloat>();
    }
  }

  void compute(const Context& context) const {
    Tensor given[2 + added];
    for (size_t i = 0; i < 2 + added; ++i) given[i] = context.input(i);
    const Tensor &a = given[added], &b = given[1 + added];
    Shape left = views_[added].sizes(a.shape), right = views_[1 + added].sizes(b.shape);
    constexpr size_t rank = batched ? 3 : 2;
    if (batched && left.size() == rank && right.size() == rank && left[0] == 1) left[0] = right[0];
    if (left.size() != rank || right.size() != rank || left[rank - 1] != right[rank - 2] ||
        (batched && left[0] != right[0])) {
      fail(kInvalidArgument, "the sizes of the factors do not fit");
    }
    Shape shape = left;
    shape[rank - 1] = right[rank - 1];
    if (added && !broadcasts(views_[0].sizes(given[0].shape), shape)) {
      fail(kInvalidArgument, "what is added does not broadcast to the product");
    }
    void* y = context.output(0, shape);
    if (count(shape) == 0) return;
    if (!context.works_alone()) return multiply(given, y, shape, nullptr);
    const Parts parts(shape, left[rank - 1], context.threads());
    context.share(parts.count, [&](int64_t i) {
      const WorksAlone alone;
      const Range part = parts[i];
      multiply(given, y, shape, parts.count == 1 ? nullptr : &part);
    });
  }

 private:
  using Handle = torch_library::Handle;
  using Range = torch_library::Range;
  using Out = std::conditional_t<
      added, torch_library::Error(Handle, Handle, Handle, Handle, double, double),
      torch_library::Error(Handle, Handle, Handle)>;

  // How a product is parted between threads: by batches, rows or columns.
  struct Parts {
    // The work that a thread more is worth, in multiplications.
    static constexpr double kWorthAThread = 600e3;
    // Rows or columns that a part has a multiple of.
    static constexpr int64_t kBlock = 16;
    size_t axis = 0;
    int64_t size, step, count;

    Parts(const Shape& shape, int64_t inner, int64_t threads) {
      const double work = double(::count(shape)) * double(std::max<int64_t>(inner, 1));
      count = threads_for(work, kWorthAThread, threads);
      int64_t block = 1;
      if (!batched || shape[0] < count) {
        axis = shape[batched] >= shape[batched + 1] ? batched : batched + 1;
        block = kBlock;
      }
      size = shape[axis];
      step = (size + count - 1) / count;
      step = (step + block - 1) / block * block;
      count = (size + step - 1) / step;
    }

    Range operator[](int64_t i) const {
      return {axis, i * step, std::min(size, (i + 1) * step)};
    }
  };

  // The multiplications and results up to which MKL is the faster one: measured.
  static constexpr double kMostByMkl = 2e7;
  static constexpr int64_t kMostResults = 1 << 16;

  // A matrix of bfloat16 as torch sees it, from a row and a column on.
  static Mkl::Matrix<Bfloat> matrix(const Tensor& tensor, const torch_library::View& view,
                                    int64_t row, int64_t column) {
    const Shape sizes = view.sizes(tensor.shape), steps = view.strides(tensor.shape);
    const Bfloat* from = tensor.as<Bfloat>() + row * steps[0] + column * steps[1];
    const bool turned = steps[1] != 1;
    // MKL wants no step less than what lies in a row, not even where there is one row.
    return {from, std::max<int64_t>({steps[turned], sizes[!turned], 1}), turned};
  }

  // Compute a part that is small, or all; false if it is not.
  bool multiply_by_mkl(const Tensor (&given)[2 + added], void* result, const Shape& shape,
                       const Range* part) const {
    int64_t begin[2] = {0, 0}, size[2] = {shape[0], shape[1]};
    if (part != nullptr) {
      begin[part->axis] = part->begin;
      size[part->axis] = part->end - part->begin;
    }
    const int64_t m = size[0], n = size[1];
    const int64_t k = views_[added].sizes(given[added].shape)[1];
    if (m > kMostResults / n || double(m) * double(n) * double(k) > kMostByMkl) return false;
    const auto a = matrix(given[added], views_[added], begin[0], 0);
    const auto b = matrix(given[1 + added], views_[1 + added], 0, begin[1]);
    if (std::max(a.step, b.step) > INT32_MAX) return false;
    float* sums = room(0, m * n);
    Mkl::get().multiply(m, n, k, static_cast<float>(alpha_), a, b, 0, sums, n);
    Bfloat* y = static_cast<Bfloat*>(result) + begin[0] * shape[1] + begin[1];
    for (int64_t i = 0; i < m; ++i) {
      if (added && beta_ != 0) add_row(given[0], begin[0] + i, begin[1], n, sums + i * n);
      narrow_all(sums + i * n, y + i * shape[1], n);
    }
    return true;
  }

  // Add a part of a row of what is added.
  void add_row(const Tensor& addend, int64_t row, int64_t column, int64_t n, float* sums) const {
    const Shape sizes = views_[0].sizes(addend.shape), steps = views_[0].strides(addend.shape);
    auto step = [&](size_t from_last) {
      const size_t rank = sizes.size();
      return rank < from_last || sizes[rank - from_last] == 1 ? 0 : steps[rank - from_last];
    };
    const int64_t along = step(1);
    const Bfloat* from = addend.as<Bfloat>() + row * step(2) + column * along;
    const auto factor = static_cast<float>(beta_);
    if (along == 1) {
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) sums[j] += factor * widen(from[j]);
    } else {
      for (int64_t j = 0; j < n; ++j) sums[j] += factor * widen(from[j * along]);
    }
  }

  // Compute a part of the result, or all.
  void multiply(const Tensor (&given)[2 + added], void* result, const Shape& shape,
                const Range* part) const {
    if constexpr (!batched) {
      if (by_mkl_ && count(shape) != 0 && multiply_by_mkl(given, result, shape, part)) return;
    }
    constexpr size_t row = batched, column = row + 1;
    // A factor has the batches, and the rows or the columns of the result.
    auto without = [&](size_t axis) {
      return part != nullptr && part->axis == axis ? nullptr : part;
    };
    torch_library::Owned y(result, shape, result_, part);
    int64_t batches = batched ? shape[0] : 0;
    if (batched && part != nullptr && part->axis == 0) batches = part->end - part->begin;
    torch_library::Owned x(given[added], views_[added], without(column), batches);
    torch_library::Owned w(given[1 + added], views_[1 + added], without(row));
    const auto& torch = torch_library::Interface::get();
    if constexpr (added) {
      const Shape addend = views_[0].sizes(given[0].shape);
      Range of_addend{};
      bool repeats = part == nullptr;
      if (!repeats) {
        const size_t missing = shape.size() - addend.size();
        repeats = part->axis < missing || addend[part->axis - missing] == 1;
        of_addend = {part->axis - missing, part->begin, part->end};
      }
      torch_library::Owned c(given[0], views_[0], repeats ? nullptr : &of_addend);
      torch.check(out_.call(y.get(), c.get(), x.get(), w.get(), beta_, alpha_), name);
    } else {
      torch.check(out_.call(y.get(), x.get(), w.get()), name);
    }
  }

  static std::string named(const char* suffix) {
    return std::string("aoti_torch_cpu_") + name + suffix;
  }

  torch_library::Function<Out> out_;
  torch_library::View views_[2 + added];
  torch_library::View result_;
  double beta_ = 1, alpha_ = 1;
  bool by_mkl_ = false;
};

static const Operators<TorchProduct<false, false>,
                       TorchProduct<false, true>,
                       TorchProduct<true, false>,
                       TorchProduct<true, true>>
    torch_products_operators;
