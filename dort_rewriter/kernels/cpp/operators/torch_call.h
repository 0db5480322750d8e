// Any operator of torch, called through Python: what has no converter, and would cut a graph.
//
// The attribute `call` is the number of a call that Python knows. NOTE: numbers are drawn at random
// and belong to one process: a model from elsewhere names none, and is refused.
#pragma once

#include "python.h"

class TorchCall : public Operator {
 public:
  static constexpr const char* name = "TorchCall";
  static constexpr ElementType inputs[] = {kEach};
  static constexpr ElementType outputs[] = {kEach};
  static constexpr bool variadic = true;
  static constexpr const char* library = "python";
  static constexpr size_t most = 1000;

  explicit TorchCall(const Info& info) : call_(info.integer("call", 0)) {
    for (size_t i = 0; i < info.inputs(); ++i) width(info.input_type(i));
    for (size_t i = 0; i < info.outputs(); ++i) {
      const ElementType type = info.output_type(i);
      widths_.push_back(type == kAny ? 0 : width(type));  // unused
    }
    if (!python::is_there || !is_known()) {
      fail(kNotImplemented, "a call of torch runs only in the process that made its model");
    }
  }

  void compute(const Context& context) const {
    std::vector<Tensor> given(context.inputs());
    for (size_t i = 0; i < given.size(); ++i) given[i] = context.input(i);
    std::vector<Made> made(widths_.size());
    python::Object* kept = nullptr;
    {
      python::Locked lock;
      kept = run(given, made);
    }
    // Other threads of Python go on meanwhile.
    OrtStatus* status = guarded([&] {
      for (size_t i = 0; i < made.size(); ++i) take(context, i, made[i]);
    });
    {
      python::Locked lock;
      python::Owned{kept};
    }
    check(status);
  }

 private:
  // A result as Python describes it: dense memory of its own.
  struct Made {
    const char* data = nullptr;
    int64_t bytes = 0;
    Shape shape;
  };

  // The bytes of an element of a type that torch's tensors have.
  static int64_t width(ElementType type) {
    switch (type) {
      case kBool:
      case kInt8:
      case kUInt8:
        return 1;
      case kInt16:
      case kFloat16:
      case kBFloat16:
        return 2;
      case kInt32:
      case kFloat:
        return 4;
      case kInt64:
      case kDouble:
        return 8;
      default:
        fail(kNotImplemented, "a call of torch has no such element type");
    }
  }

  bool is_known() const {
    python::Locked lock;
    python::Owned number(python::integer(call_));
    return python::interface.contains(python::interface.calls, number.get()) == 1;
  }

  // Call Python, with the lock held: what it returns keeps the memory of the results.
  python::Object* run(const std::vector<Tensor>& given, std::vector<Made>& made) const {
    using namespace python;
    Owned arguments(tuple_of(2, [&](size_t i) {
      if (i == 0) return integer(call_);
      return tuple_of(given.size(), [&](size_t n) { return described(given[n]); });
    }));
    Owned results(checked(interface.call(interface.function, arguments.get())));
    if (interface.size(results.get()) != static_cast<ptrdiff_t>(made.size())) {
      fail(kFail, "a call of torch has another number of results");
    }
    for (size_t i = 0; i < made.size(); ++i) {
      Object* result = item(results.get(), i);  // a tensor, its address, its bytes, its sizes
      made[i].data = reinterpret_cast<const char*>(interface.value_of(item(result, 1)));
      made[i].bytes = interface.value_of(item(result, 2));
      Object* sizes = item(result, 3);
      made[i].shape.resize(static_cast<size_t>(interface.size(sizes)));
      for (size_t d = 0; d < made[i].shape.size(); ++d) {
        made[i].shape[d] = interface.value_of(item(sizes, d));
      }
    }
    return results.release();
  }

  // The memory of an input, its type and its sizes.
  static python::Object* described(const Tensor& tensor) {
    using namespace python;
    constexpr int writable = 0x200;  // torch warns of what is not
    static char nowhere = 0;
    return tuple_of(3, [&](size_t i) {
      if (i == 1) return integer(tensor.type);
      if (i == 2) {
        return tuple_of(tensor.shape.size(), [&](size_t d) { return integer(tensor.shape[d]); });
      }
      const int64_t bytes = times(tensor.size(), width(tensor.type));
      char* data = tensor.data == nullptr ? &nowhere : tensor.as<char>();
      return interface.view_memory(data, static_cast<ptrdiff_t>(bytes), writable);
    });
  }

  // Give ONNX Runtime a result, if anybody reads it.
  void take(const Context& context, size_t index, const Made& made) const {
    if (widths_[index] == 0) return;
    check_sizes(made.shape);
    if (times(count(made.shape), widths_[index]) != made.bytes ||
        (made.data == nullptr && made.bytes != 0)) {
      fail(kFail, "a call of torch has a result of another type");
    }
    void* data = context.optional_output(index, made.shape);
    if (data != nullptr) std::copy_n(made.data, made.bytes, static_cast<char*>(data));
  }

  int64_t call_;
  std::vector<int64_t> widths_;
};

static const Operators<TorchCall> torch_call_operators;
