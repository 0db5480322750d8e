// From a C++ class to an operator of ONNX Runtime: attributes, inputs and results, threads.
//
// NOTE: nothing in a model is trusted. Types, numbers of inputs and results, and attributes are
// checked when a kernel is made; shapes at each call. No product of sizes of one tensor overflows,
// for those of Context::input and Context::output; products of other numbers are taken by `times`.
#pragma once

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <vector>

#include "half.h"
#include "openmp.h"
#include "tensors.h"
#include "torch_threads.h"

// How many there are, by what an object of ONNX Runtime says.
template <typename T>
size_t number_of(OrtStatus* (*ask)(const T*, size_t*), const T* of) {
  size_t n = 0;
  check(ask(of, &n));
  return n;
}

// How many of what takes so many numbers each are worth a thread.
inline int64_t part_of(int64_t each, int64_t numbers = 16384) {
  return std::max<int64_t>(1, numbers / std::max<int64_t>(each, 1));
}

// How many of some threads work is worth, where each is worth so much.
inline int64_t threads_for(double work, double each, int64_t most) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::min(work / each, double(most))));
}

class Context {
 public:
  Context(OrtKernelContext* context, const Threads& threads, const ElementType* types)
      : context_(context), threads_(threads), types_(types) {}

  size_t inputs() const {
    return number_of<OrtKernelContext>(api.KernelContext_GetInputCount, context_);
  }
  size_t outputs() const {
    return number_of<OrtKernelContext>(api.KernelContext_GetOutputCount, context_);
  }

  ONCE Tensor input(size_t index) const {
    const OrtValue* value = nullptr;
    check(api.KernelContext_GetInput(context_, index, &value));
    if (value == nullptr) fail(kInvalidArgument, "an input is missing");
    struct Described {
      OrtTensorTypeAndShapeInfo* info = nullptr;
      ~Described() { api.ReleaseTensorTypeAndShapeInfo(info); }
    } of;
    check(api.GetTensorTypeAndShape(value, &of.info));
    Tensor tensor;
    size_t rank = 0;
    check(api.GetTensorElementType(of.info, &tensor.type));
    check(api.GetDimensionsCount(of.info, &rank));
    tensor.shape.resize(rank);
    check(api.GetDimensions(of.info, tensor.shape.data(), rank));
    check_sizes(tensor.shape);
    check(api.GetTensorMutableData(const_cast<OrtValue*>(value), &tensor.data));
    return tensor;
  }

  ONCE void* output(size_t index, const Shape& shape) const {
    void* data = optional_output(index, shape);
    // what is empty may be nowhere
    if (data == nullptr && count(shape) != 0) fail(kInvalidArgument, "a result is missing");
    return data;
  }

  // The type of a result that is declared, not of one that repeats.
  ElementType output_type(size_t index) const { return types_[index]; }

  // Null when this result is unused.
  ONCE void* optional_output(size_t index, const Shape& shape) const {
    if (index >= outputs()) return nullptr;
    check_sizes(shape);
    OrtValue* value = nullptr;
    check(api.KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
    if (value == nullptr) return nullptr;
    void* data = nullptr;
    check(api.GetTensorMutableData(value, &data));
    return data;
  }

  // Whether torch's kernels are to work in the threads of the session, each alone.
  bool works_alone() const { return !threads_.openmp && WorksAlone::is_possible(); }

  // How many threads share the work of a kernel.
  int64_t threads() const {
    return threads_.openmp ? OpenMp::get().threads() : threads_.count;
  }

  // Call work(begin, end) on parts of 0..total, by several threads when there is enough to do.
  template <typename F>
  void parallel(int64_t total, int64_t part, F&& work) const {
    parallel_of(total, part, Work<int64_t, int64_t>(work));
  }

  // Call work(i) for 0..total, `part` of them in a row, by several threads.
  template <typename F>
  void each(int64_t total, int64_t part, F&& work) const {
    parallel(total, part, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(i);
    });
  }

  // Call work(i) for 0..parts, by several threads.
  template <typename F>
  void share(int64_t parts, F&& work) const {
    share_of(parts, Work<int64_t>(work));
  }

 private:
  // A function of its caller, for what is compiled once and not for each function.
  template <typename... A>
  class Work {
   public:
    template <typename F>
    explicit Work(F& function)
        : function_(&function),
          call_([](const void* f, A... given) { (*static_cast<F*>(const_cast<void*>(f)))(given...); }) {}

    void operator()(A... given) const { call_(function_, given...); }

   private:
    const void* function_;
    void (*call_)(const void*, A...);
  };

  ONCE void parallel_of(int64_t total, int64_t part, Work<int64_t, int64_t> work) const {
    if (total <= 2 * part) {
      if (total > 0) work(0, total);
      return;
    }
    share(total / part + (total % part != 0), [&](int64_t i) {
      int64_t begin = i * part;
      work(begin, begin + std::min(part, total - begin));
    });
  }

  ONCE void share_of(int64_t parts, Work<int64_t> work) const {
    if (parts == 1) return work(0);
    struct Job {
      Work<int64_t> work;
      std::atomic<OrtStatus*> failure{nullptr};
    } job{work};
    auto run = [](void* data, size_t i) {
      auto& job = *static_cast<Job*>(data);
      // an exception must not leave a thread of ONNX Runtime
      OrtStatus* status = guarded([&] { job.work(static_cast<int64_t>(i)); });
      if (status == nullptr) return;
      if (OrtStatus* none = nullptr; !job.failure.compare_exchange_strong(none, status)) {
        api.ReleaseStatus(status);
      }
    };
    OrtStatus* status = nullptr;
    if (threads_.openmp && OpenMp::get().is_there()) {
      OpenMp::get().share(parts, [&](int64_t i) { run(&job, static_cast<size_t>(i)); });
    } else {
      status = api.KernelContext_ParallelFor(context_, run, parts, 0, &job);
    }
    if (OrtStatus* failure = job.failure.load()) {
      if (status != nullptr) api.ReleaseStatus(status);
      status = failure;
    }
    check(status);
  }

  OrtKernelContext* context_;
  Threads threads_;
  const ElementType* types_;
};

class Info {
 public:
  explicit Info(const OrtKernelInfo* info) : info_(info) {}

  size_t inputs() const { return number_of<OrtKernelInfo>(api.KernelInfo_GetInputCount, info_); }
  size_t outputs() const { return number_of<OrtKernelInfo>(api.KernelInfo_GetOutputCount, info_); }

  ONCE int64_t integer(const char* name, int64_t otherwise) const {
    int64_t value = otherwise;
    return is_there(api.KernelInfoGetAttribute_int64(info_, name, &value)) ? value : otherwise;
  }

  // An integer between two others.
  ONCE int64_t integer(const char* name, int64_t otherwise, int64_t least, int64_t most) const {
    int64_t value = integer(name, otherwise);
    if (value < least || value > most) {
      fail(kInvalidArgument, std::string("the attribute ") + name + " is out of its range");
    }
    return value;
  }

  bool flag(const char* name, bool otherwise) const { return integer(name, otherwise, 0, 1) != 0; }

  double number(const char* name) const {
    float value = 0;
    check(api.KernelInfoGetAttribute_float(info_, name, &value));
    return value;
  }

  ONCE Integers integers(const char* name) const {
    size_t n = 0;
    check(api.KernelInfoGetAttributeArray_int64(info_, name, nullptr, &n));
    if (n > kMostNumbers) {
      fail(kInvalidArgument, std::string("the attribute ") + name + " is too long");
    }
    Integers values(n);
    if (n > 0) check(api.KernelInfoGetAttributeArray_int64(info_, name, values.data(), &n));
    return values;
  }

  ONCE double number(const char* name, double otherwise) const {
    float value = 0;
    return is_there(api.KernelInfoGetAttribute_float(info_, name, &value)) ? value : otherwise;
  }

  // Whether there is a list of integers of this name.
  ONCE bool has_integers(const char* name) const {
    size_t n = 0;
    return is_there(api.KernelInfoGetAttributeArray_int64(info_, name, nullptr, &n));
  }

  // An order of axes.
  ONCE Integers permutation(const char* name) const {
    Integers perm = integers(name), sorted = perm;
    if (perm.size() > kMostAxes) fail(kNotImplemented, "too many dimensions");
    std::sort(sorted.begin(), sorted.end());
    for (size_t d = 0; d < sorted.size(); ++d) {
      if (sorted[d] != static_cast<int64_t>(d)) fail(kInvalidArgument, "no order of axes");
    }
    return perm;
  }

  ElementType input_type(size_t index) const {
    OrtTypeInfo* type = nullptr;
    check(api.KernelInfo_GetInputTypeInfo(info_, index, &type));
    return element_type(type);
  }

  // kAny for an unused result.
  ElementType output_type(size_t index) const {
    OrtTypeInfo* type = nullptr;
    const bool read = is_there(api.KernelInfo_GetOutputTypeInfo(info_, index, &type));
    return read ? element_type(type) : kAny;
  }

 private:
  static constexpr size_t kMostNumbers = 5 * 512;

  // Whether something was found; why not is of no interest.
  static bool is_there(OrtStatus* status) {
    if (status != nullptr) api.ReleaseStatus(status);
    return status == nullptr;
  }

  // The type of the elements of a tensor, of a rank that has a kernel.
  ONCE static ElementType element_type(OrtTypeInfo* type) {
    struct Owned {
      OrtTypeInfo* type;
      ~Owned() { api.ReleaseTypeInfo(type); }
    } owned{type};
    const OrtTensorTypeAndShapeInfo* tensor = nullptr;
    check(api.CastTypeInfoToTensorInfo(type, &tensor));
    if (tensor == nullptr) fail(kInvalidArgument, "only tensors have a kernel");
    ElementType element = kAny;
    check(api.GetTensorElementType(tensor, &element));
    size_t rank = 0;
    check(api.GetDimensionsCount(tensor, &rank));
    if (rank > kMostAxes) fail(kNotImplemented, "too many dimensions");
    return element;
  }

  const OrtKernelInfo* info_;
};

// Call work with a value of the element type, and of the type that it is computed in.
template <typename F>
void dispatch(ElementType type, F&& work) {
  if (type == kFloat) {
    work(float{}, float{});
  } else if (type == kDouble) {
    work(double{}, double{});
  } else if (type == kFloat16) {
    work(Half{}, float{});
  } else if (type == kBFloat16) {
    work(Bfloat{}, float{});
  } else {
    fail(kNotImplemented, "float, double, float16 and bfloat16 have a kernel, not type " +
                              std::to_string(static_cast<int>(type)));
  }
}

// Whether a type is computed in float.
constexpr bool is_floating(ElementType type) {
  return type == kFloat || type == kFloat16 || type == kBFloat16;
}

// What an operator declares beside its name and the types of its inputs and results: its class
// derives from this, and says what is otherwise.
struct Operator {
  static constexpr bool variadic = false;       // the last input, and result, may be several
  static constexpr bool last_optional = false;  // the last result may be left out
  static constexpr size_t most = kMost;         // inputs, or results, where they may be several
  static constexpr size_t in_place = 0;         // inputs, or variadic ones, that may be written over
  // Whether nothing but a lack of memory makes `compute` fail once its inputs have the right shapes,
  // so that it may write over an argument of the program.
  static constexpr bool never_fails = false;
  static constexpr const char* layouts = "dense";  // strides that it reads without a copy
  static constexpr const char* library = "own";    // what computes it
};

// Whether the inputs and results of an operator have a type each.
//
// NOTE: ONNX Runtime has this for inputs and results that repeat only. It infers no types of them:
// those of the results stand in the model.
template <typename K>
constexpr bool kMixed = [] {
  for (ElementType type : K::inputs) {
    if (type < kAny) return true;
  }
  return false;
}();

// Whether a type is the one expected; kAny stands for the type `any`.
constexpr bool fits(ElementType type, ElementType expected, ElementType any) {
  if (expected == kEach) return true;
  if (expected == kFloating) return is_floating(type);
  return type == (expected == kAny ? any : expected);
}

// Check the numbers and the types of the inputs and results of a node of the class `K`.
template <typename K>
void check_signature(const Info& info) {
  constexpr size_t n = std::size(K::inputs), results = std::size(K::outputs);
  size_t given = info.inputs(), made = info.outputs();
  size_t fewest = results - (K::last_optional ? 1 : 0);
  if (given < n || given > (K::variadic ? K::most : n) || made < fewest ||
      made > (K::variadic ? K::most : results)) {
    fail(kInvalidArgument, "there are too few or too many inputs or results");
  }
  ElementType any = kAny;  // the type of the inputs, and results, that may have one of several
  for (size_t i = 0; i < given; ++i) {
    ElementType expected = K::inputs[std::min(i, n - 1)], type = info.input_type(i);
    if (expected == kAny && any == kAny) any = type;
    if (!fits(type, expected, any)) fail(kInvalidArgument, "the inputs are of other types");
  }
  for (size_t i = 0; i < made; ++i) {
    ElementType expected = K::outputs[std::min(i, results - 1)], type = info.output_type(i);
    if (type == kAny && (i + 1 == results || K::variadic)) continue;
    if (!fits(type, expected, any)) fail(kInvalidArgument, "the results are of other types");
  }
}

// How many of some types are kAny.
template <size_t n>
constexpr size_t count_any(const ElementType (&types)[n]) {
  size_t found = 0;
  for (ElementType type : types) found += type == kAny;
  return found;
}

// A kernel, the threads that share its work, and the types of its results.
template <typename K>
struct Made {
  explicit Made(const Info& info) : kernel(info) {
    for (size_t i = 0; i < std::size(K::outputs); ++i) types[i] = info.output_type(i);
  }
  K kernel;
  Threads threads = threads_of_session;
  ElementType types[std::size(K::outputs)];
};

// The operator of a class `K`, an Operator with: name, inputs and outputs (types; kAny follows the
// first input that is kAny, kFloating and kEach nothing), a constructor from Info, compute(Context).
template <typename K>
const OrtCustomOp* operator_of() {
  // ONNX Runtime refuses the whole library otherwise.
  static_assert(count_any(K::inputs) <= 1,
                "several inputs of one type, which may be any, are a single variadic input");
  static const OrtCustomOp op = [] {
    OrtCustomOp o{};
    o.version = kApiVersion;
    o.GetName = [](const OrtCustomOp*) { return K::name; };
    o.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
    o.GetInputType = [](const OrtCustomOp*, size_t i) { return kMixed<K> ? kAny : K::inputs[i]; };
    o.GetInputTypeCount = [](const OrtCustomOp*) {
      return kMixed<K> ? size_t{1} : std::size(K::inputs);
    };
    o.GetOutputType = [](const OrtCustomOp*, size_t i) { return kMixed<K> ? kAny : K::outputs[i]; };
    o.GetOutputTypeCount = [](const OrtCustomOp*) {
      return kMixed<K> ? size_t{1} : std::size(K::outputs);
    };
    o.KernelDestroy = [](void* kernel) { delete static_cast<Made<K>*>(kernel); };
    o.GetInputCharacteristic = [](const OrtCustomOp*, size_t i) {
      bool last = K::variadic && i + 1 == std::size(K::inputs);
      return kMixed<K> || last ? kVariadic : kRequired;
    };
    o.GetOutputCharacteristic = [](const OrtCustomOp*, size_t i) {
      if (K::variadic || kMixed<K>) return kVariadic;
      return K::last_optional && i + 1 == std::size(K::outputs) ? kOptional : kRequired;
    };
    o.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
    auto one = [](const OrtCustomOp*) { return 1; };
    auto alike = [](const OrtCustomOp*) { return kMixed<K> ? 0 : 1; };
    o.GetVariadicInputMinArity = one;
    o.GetVariadicInputHomogeneity = alike;
    o.GetVariadicOutputMinArity = one;
    o.GetVariadicOutputHomogeneity = alike;
    if (kMixed<K>) {  // only the model knows the types of the results
      o.InferOutputShapeFn = [](const OrtCustomOp*, OrtShapeInferContext*) -> OrtStatus* {
        return nullptr;
      };
    }
    o.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo* info,
                          void** kernel) {
      return guarded([&] {
        Info about(info);
        check_signature<K>(about);
        *kernel = new Made<K>(about);
      });
    };
    o.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
      return guarded([&] {
        const auto& made = *static_cast<const Made<K>*>(kernel);
        made.kernel.compute(Context(context, made.threads, made.types));
      });
    };
    o.GetMayInplace = [](int** inputs, int** outputs) -> size_t {
      constexpr size_t n = K::in_place;
      *inputs = *outputs = nullptr;
      if (n == 0) return 0;
      *inputs = new int[n];
      *outputs = new int[n];
      constexpr size_t other = K::variadic ? std::size(K::inputs) - 1 : 0;
      for (size_t i = 0; i < n; ++i) {
        (*inputs)[i] = static_cast<int>(i + other);
        (*outputs)[i] = 0;
      }
      return n;
    };
    o.ReleaseMayInplace = [](int* inputs, int* outputs) {
      delete[] inputs;
      delete[] outputs;
    };
    return o;
  }();
  return &op;
}

// Whether casts of inputs and results to and from types that are computed in float are left to it.
template <typename K>
constexpr bool kCasts = kMixed<K> && (!K::variadic || K::inputs[0] == kFloating);

// What Python knows of an operator, as JSON.
template <typename K>
std::string declared() {
  auto flag = [](const char* key, bool value) {
    return std::string(",\"") + key + "\":" + (value ? "true" : "false");
  };
  return std::string("{\"name\":\"") + K::name + "\"" + flag("never_fails", K::never_fails) +
         flag("mixed_types", kCasts<K>) + ",\"layouts\":\"" + K::layouts +
         "\",\"library\":\"" + K::library + "\"}";
}

struct Registered {
  const OrtCustomOp* op;
  std::string declared;
};

inline std::vector<Registered>& registered() {
  static std::vector<Registered> all;
  return all;
}

// Makes operators known: each header of the folder operators/ ends with one of these.
template <typename... K>
struct Operators {
  Operators() { (registered().push_back({operator_of<K>(), declared<K>()}), ...); }
};
