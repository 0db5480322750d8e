// torch's kernels, called through its stable C interface in the process that has loaded torch.
//
// No header of torch is read, and nothing is linked: functions are found by name among those of the
// library that is loaded, when a kernel is made. Where there is no torch, or it has no such
// function, the kernel is refused, and nothing else.
//
// NOTE: tensors made here describe memory that they do not own. They end before the kernel returns,
// so that none is left when ONNX Runtime uses the memory again.
#pragma once

#include <string>
#include <utility>

#include "kernel.h"
#include "torch_symbols.h"

namespace torch_library {

// A function of torch by its name.
template <typename F>
struct Function {
  F* call;
  explicit Function(const std::string& name) : call(optional_function<F>(name.c_str())) {
    if (call != nullptr) return;
    fail(kNotImplemented,
         loaded() == nullptr
             ? "a kernel of torch runs only in a Python process that has imported torch"
             : "this torch has no " + name);
  }
};

using Error = int32_t;
using Handle = void*;

// What every kernel needs of torch.
struct Interface {
  Function<Error(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t,
                 int32_t, Handle*)>
      create{"aoti_torch_create_tensor_from_blob"};
  Function<Error(Handle)> remove{"aoti_torch_delete_tensor_object"};
  const char* (*said)() =
      optional_function<const char*()>("torch_exception_get_what_without_backtrace");

  void check(Error error, const std::string& name) const {
    if (error == 0) return;
    const char* words = said == nullptr ? nullptr : said();
    fail(kFail, "torch's " + name + " failed: " +
                    (words == nullptr ? "it wrote why to the error stream" : words));
  }

  static const Interface& get() {
    static const Interface found;  // tried again by the next kernel if it throws
    return found;
  }
};

// torch's number of an element type; -1 for one that its kernels are not called with.
inline int32_t number_of(ElementType type) {
  struct Known {
    ElementType type;
    const char* function;
  };
  static constexpr Known known[] = {
      {kFloat, "aoti_torch_dtype_float32"},   {kDouble, "aoti_torch_dtype_float64"},
      {kFloat16, "aoti_torch_dtype_float16"}, {kBFloat16, "aoti_torch_dtype_bfloat16"},
      {kInt64, "aoti_torch_dtype_int64"},     {kInt32, "aoti_torch_dtype_int32"},
      {kInt16, "aoti_torch_dtype_int16"},     {kInt8, "aoti_torch_dtype_int8"},
      {kUInt8, "aoti_torch_dtype_uint8"},     {kBool, "aoti_torch_dtype_bool"},
  };
  for (const Known& one : known) {
    if (one.type == type) return Function<int32_t()>(one.function).call();
  }
  return -1;
}

// How torch is to see an input: its number of an element type, and an order of its axes.
class View {
 public:
  View() = default;
  View(ElementType type, int32_t number, Integers perm = {})
      : type_(type), number_(number), perm_(std::move(perm)) {}

  // Of the input of a kernel: its type now, its order from the attribute `perm<index>`.
  View(const Info& info, size_t index, bool for_torch = true) : type_(info.input_type(index)) {
    if (for_torch) number_ = number_of(type_);
    if (for_torch && number_ < 0) fail(kNotImplemented, "torch's kernels have no such element type");
    std::string name = "perm" + std::to_string(index);
    if (info.has_integers(name.c_str())) perm_ = info.permutation(name.c_str());
  }

  ElementType type() const { return type_; }
  int32_t number() const { return number_; }

  // The bytes of an element of a type that is computed in float.
  int64_t width() const { return type_ == kFloat ? 4 : 2; }

  // Whether the last axis stays the last.
  bool keeps_last() const {
    return perm_.empty() || perm_.back() == static_cast<int64_t>(perm_.size()) - 1;
  }

  // The sizes that torch sees.
  Shape sizes(const Shape& shape) const {
    if (perm_.empty()) return shape;
    if (perm_.size() != shape.size()) fail(kInvalidArgument, "an order of other axes");
    return ordered(shape);
  }

  // The steps along them.
  Shape strides(const Shape& shape) const {
    Shape dense(shape.size());
    int64_t step = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      dense[d] = step;
      step *= std::max<int64_t>(shape[d], 1);
    }
    return perm_.empty() ? dense : ordered(dense);
  }

 private:
  Shape ordered(const Shape& numbers) const {
    Shape result(numbers.size());
    for (size_t d = 0; d < numbers.size(); ++d) result[d] = numbers[perm_[d]];
    return result;
  }

  ElementType type_ = kAny;
  int32_t number_ = -1;
  Integers perm_;
};

// A part of a tensor along one of the axes that torch sees.
struct Range {
  size_t axis;
  int64_t begin, end;
};

// A tensor of torch.
class Owned {
 public:
  Owned() = default;

  // Of memory that belongs to ONNX Runtime, or of a part of it. With `times` the first axis
  // repeats what there is of it so often, where that is one.
  Owned(void* data, const Shape& shape, const View& view, const Range* part = nullptr,
        int64_t times = 0) {
    Shape sizes = view.sizes(shape), strides = view.strides(shape);
    if (times > 0 && sizes[0] == 1) {
      sizes[0] = times;
      strides[0] = 0;
      if (part != nullptr && part->axis == 0) part = nullptr;
    }
    if (part != nullptr) {
      sizes[part->axis] = part->end - part->begin;
      data = static_cast<char*>(data) + part->begin * strides[part->axis] * view.width();
    }
    const Interface& torch = Interface::get();
    constexpr int32_t cpu = 0, index = -1;
    torch.check(torch.create.call(data, static_cast<int64_t>(sizes.size()), sizes.data(),
                                  strides.data(), 0, view.number(), cpu, index, &handle_),
                "tensor");
  }

  Owned(const Tensor& tensor, const View& view, const Range* part = nullptr, int64_t times = 0)
      : Owned(tensor.data, tensor.shape, view, part, times) {}

  Owned(Owned&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle_ != nullptr) Interface::get().remove.call(handle_);
  }

  Handle get() const { return handle_; }
  Handle* place() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

using Copy = Function<Error(Handle to, Handle from, int32_t non_blocking)>;

// A result that torch makes: its type, and the order of axes in which ONNX Runtime gets it, from
// the attribute `order<index>`.
class Result {
 public:
  Result(const Info& info, size_t index, ElementType type, bool for_torch = true) : index_(index) {
    const ElementType declared = info.output_type(index);
    if (declared != type && declared != kAny) {
      fail(kInvalidArgument, "a result is of another type");
    }
    std::string name = "order" + std::to_string(index);
    if (info.has_integers(name.c_str())) order_ = info.permutation(name.c_str());
    Integers back(order_.size());
    for (size_t d = 0; d < order_.size(); ++d) back[order_[d]] = static_cast<int64_t>(d);
    view_ = View(type, for_torch ? number_of(type) : -1, back);
  }

  // Where ONNX Runtime wants it, null if it is unused, and its sizes there.
  struct Place {
    void* data = nullptr;
    Shape lies;
  };

  Place place(const Context& context, const Shape& shape) const {
    Place found{nullptr, shape};
    if (!order_.empty()) {
      if (order_.size() != shape.size()) fail(kInvalidArgument, "an order of other axes");
      for (size_t d = 0; d < shape.size(); ++d) found.lies[d] = shape[order_[d]];
    }
    found.data = context.optional_output(index_, found.lies);
    return found;
  }

  // The steps along the axes that torch sees, to a result that lies there.
  Shape strides(const Place& place) const { return view_.strides(place.lies); }

  // Give ONNX Runtime what torch made of a part, or of all.
  void take(const Place& place, const Owned& made, const Range* part, const Copy& copy) const {
    if (place.data == nullptr) return;
    Owned to(place.data, place.lies, view_, part);
    Interface::get().check(copy.call(to.get(), made.get(), 0), "copy");
  }

 private:
  size_t index_;
  Integers order_;
  View view_;
};

}  // namespace torch_library
