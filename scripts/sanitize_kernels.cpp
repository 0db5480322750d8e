// Runs the operators of our own without ONNX Runtime, on cases read from standard input.
//
// What stands for ONNX Runtime here trusts nothing and gives nothing away: each tensor has memory of
// exactly its size, each kernel a thread of its own, and what a kernel is lent must come back. A
// case is a line of words, see `read_case`; the answer to each is a line.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "library.cpp"

namespace {

constexpr int64_t kMostElements = 1 << 20;
constexpr unsigned kSeconds = 60;

int lent = 0;  // statuses and descriptions that nobody gave back

[[noreturn]] void give_up(const char* why) {
  std::cerr << "FOUND: " << why << std::endl;
  std::_Exit(3);
}

}  // namespace

struct OrtStatus {
  std::string message;
};
struct OrtTensorTypeAndShapeInfo {
  ElementType type;
  Integers dims;
};
struct OrtTypeInfo {
  OrtTensorTypeAndShapeInfo tensor;
};
struct OrtValue {
  ElementType type = kAny;
  Integers dims;
  void* data = nullptr;
  OrtValue() = default;
  OrtValue(const OrtValue&) = delete;
  ~OrtValue() { std::free(data); }
};
struct OrtCustomOpDomain {};

namespace {

struct Attribute {
  char kind;  // i, f, or I for a list
  Integers integers;
  float number = 0;
};

struct Case {
  std::string op;
  std::map<std::string, Attribute> attributes;
  std::vector<std::unique_ptr<OrtValue>> inputs, outputs;
  std::vector<ElementType> results;  // kAny for one that nobody reads
  std::vector<std::vector<float>> places;  // what addresses are given of
  unsigned seed = 0;
};

std::map<std::string, const OrtCustomOp*> operators;

OrtStatus* make_status(ErrorCode, const char* message) {
  ++lent;
  return new OrtStatus{message};
}

OrtStatus* refuse(const char* message) { return make_status(kFail, message); }

size_t bytes_of(ElementType type) {
  switch (type) {
    case kBool:
      return 1;
    case kFloat16:
    case kBFloat16:
      return 2;
    case kFloat:
      return 4;
    default:
      return 8;
  }
}

// Return whether there is memory for a tensor; none may be where it is empty.
bool allocate(OrtValue& value, unsigned seed) {
  int64_t total = 1;
  for (int64_t size : value.dims) {
    if (size < 0) return false;
    if (size == 0) total = 0;
  }
  if (total != 0) {
    for (int64_t size : value.dims) {
      if (size > kMostElements || (total *= size) > kMostElements) return false;
    }
  }
  if (total == 0 && seed % 2 == 0) return true;
  size_t bytes = static_cast<size_t>(total) * bytes_of(value.type);
  value.data = std::malloc(bytes);
  auto* to = static_cast<unsigned char*>(value.data);
  for (size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525u + 1013904223u;
    to[i] = static_cast<unsigned char>(seed >> 24);
  }
  return true;
}

template <typename F>
F as(const void* from) {
  return reinterpret_cast<F>(const_cast<void*>(from));
}
const Case& of(const void* info) { return *static_cast<const Case*>(info); }

void fill(Api& to) {
  to.CreateStatus = make_status;
  to.ReleaseStatus = [](OrtStatus* status) {
    if (status == nullptr) return;
    --lent;
    delete status;
  };
  to.CreateCustomOpDomain = [](const char*, OrtCustomOpDomain** domain) -> OrtStatus* {
    static OrtCustomOpDomain only;
    *domain = &only;
    return nullptr;
  };
  to.CustomOpDomain_Add = [](OrtCustomOpDomain*, const OrtCustomOp* op) -> OrtStatus* {
    operators[op->GetName(op)] = op;
    return nullptr;
  };
  to.AddCustomOpDomain = [](OrtSessionOptions*, OrtCustomOpDomain*) -> OrtStatus* {
    return nullptr;
  };
  to.GetTensorMutableData = [](OrtValue* value, void** data) -> OrtStatus* {
    if (value == nullptr) give_up("the data of no tensor are asked for");
    *data = value->data;
    return nullptr;
  };
  to.CastTypeInfoToTensorInfo = [](const OrtTypeInfo* type,
                                   const OrtTensorTypeAndShapeInfo** tensor) -> OrtStatus* {
    *tensor = type->tensor.type == kAny ? nullptr : &type->tensor;
    return nullptr;
  };
  to.GetTensorElementType = [](const OrtTensorTypeAndShapeInfo* info,
                               ElementType* type) -> OrtStatus* {
    *type = info->type;
    return nullptr;
  };
  to.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, size_t* n) -> OrtStatus* {
    *n = info->dims.size();
    return nullptr;
  };
  to.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, int64_t* dims,
                        size_t n) -> OrtStatus* {
    std::copy_n(info->dims.begin(), std::min(n, info->dims.size()), dims);
    return nullptr;
  };
  to.GetTensorTypeAndShape = [](const OrtValue* value,
                                OrtTensorTypeAndShapeInfo** info) -> OrtStatus* {
    ++lent;
    *info = new OrtTensorTypeAndShapeInfo{value->type, value->dims};
    return nullptr;
  };
  to.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) {
    if (info == nullptr) return;
    --lent;
    delete info;
  };
  to.KernelInfoGetAttribute_float = [](const OrtKernelInfo* info, const char* name,
                                       float* value) -> OrtStatus* {
    auto found = of(info).attributes.find(name);
    if (found == of(info).attributes.end()) return refuse("no attribute");
    if (found->second.kind != 'f') return refuse("an attribute of another type");
    *value = found->second.number;
    return nullptr;
  };
  to.KernelInfoGetAttribute_int64 = [](const OrtKernelInfo* info, const char* name,
                                       int64_t* value) -> OrtStatus* {
    auto found = of(info).attributes.find(name);
    if (found == of(info).attributes.end()) return refuse("no attribute");
    if (found->second.kind != 'i') return refuse("an attribute of another type");
    *value = found->second.integers.at(0);
    return nullptr;
  };
  to.KernelInfoGetAttributeArray_int64 = [](const OrtKernelInfo* info, const char* name,
                                            int64_t* values, size_t* n) -> OrtStatus* {
    auto found = of(info).attributes.find(name);
    if (found == of(info).attributes.end()) return refuse("no attribute");
    if (found->second.kind != 'I') return refuse("an attribute of another type");
    const Integers& all = found->second.integers;
    if (values != nullptr && *n < all.size()) return refuse("there is no room for a list");
    *n = all.size();
    if (values != nullptr) std::copy(all.begin(), all.end(), values);
    return nullptr;
  };
  to.KernelInfo_GetInputCount = [](const OrtKernelInfo* info, size_t* n) -> OrtStatus* {
    *n = of(info).inputs.size();
    return nullptr;
  };
  to.KernelInfo_GetOutputCount = [](const OrtKernelInfo* info, size_t* n) -> OrtStatus* {
    *n = of(info).results.size();
    return nullptr;
  };
  to.KernelInfo_GetInputTypeInfo = [](const OrtKernelInfo* info, size_t i,
                                      OrtTypeInfo** type) -> OrtStatus* {
    if (i >= of(info).inputs.size()) return refuse("no such input");
    ++lent;
    *type = new OrtTypeInfo{{of(info).inputs[i]->type, {}}};  // shapes are known later
    return nullptr;
  };
  to.KernelInfo_GetOutputTypeInfo = [](const OrtKernelInfo* info, size_t i,
                                       OrtTypeInfo** type) -> OrtStatus* {
    if (i >= of(info).results.size()) return refuse("no such output");
    if (of(info).results[i] == kAny) return refuse("an output without a type");
    ++lent;
    *type = new OrtTypeInfo{{of(info).results[i], {}}};
    return nullptr;
  };
  to.ReleaseTypeInfo = [](OrtTypeInfo* info) {
    if (info == nullptr) return;
    --lent;
    delete info;
  };
  to.KernelContext_GetInputCount = [](const OrtKernelContext* context, size_t* n) -> OrtStatus* {
    *n = of(context).inputs.size();
    return nullptr;
  };
  to.KernelContext_GetOutputCount = [](const OrtKernelContext* context, size_t* n) -> OrtStatus* {
    *n = of(context).results.size();
    return nullptr;
  };
  to.KernelContext_GetInput = [](const OrtKernelContext* context, size_t i,
                                 const OrtValue** value) -> OrtStatus* {
    if (i >= of(context).inputs.size()) return refuse("no such input");
    *value = of(context).inputs[i].get();
    return nullptr;
  };
  to.KernelContext_GetOutput = [](OrtKernelContext* context, size_t i, const int64_t* dims,
                                  size_t rank, OrtValue** value) -> OrtStatus* {
    auto& self = *reinterpret_cast<Case*>(context);
    *value = nullptr;
    if (i >= self.results.size()) return refuse("no such output");
    if (self.results[i] == kAny) return nullptr;
    auto made = std::make_unique<OrtValue>();
    made->type = self.results[i];
    made->dims.assign(dims, dims + rank);
    if (!allocate(*made, self.seed)) return refuse("there is no memory for a result");
    self.outputs.push_back(std::move(made));
    *value = self.outputs.back().get();
    return nullptr;
  };
  to.KernelContext_ParallelFor = [](const OrtKernelContext*, void (*work)(void*, size_t), size_t n,
                                    size_t, void* data) -> OrtStatus* {
    if (n > static_cast<size_t>(kMostElements)) give_up("work in too many parts");
    for (size_t i = n; i-- > 0;) work(data, i);
    return nullptr;
  };
}

// A line: operator, seed, attributes (name, kind, how many, values), inputs (type, rank, sizes, how
// many of its integers are given, and these), types of the results; each list behind its length.
bool read_case(const std::string& line, Case& to) {
  std::istringstream in(line);
  size_t n = 0, many = 0;
  in >> to.op >> to.seed >> n;
  for (size_t i = 0; i < n; ++i) {
    std::string name;
    Attribute attribute;
    in >> name >> attribute.kind >> many;
    attribute.integers.resize(many);
    for (int64_t& value : attribute.integers) in >> value;
    if (many > 0) attribute.number = static_cast<float>(attribute.integers[0]) / 1024;
    to.attributes[name] = attribute;
  }
  in >> n;
  for (size_t i = 0; i < n; ++i) {
    auto value = std::make_unique<OrtValue>();
    int type = 0;
    in >> type >> many;
    value->type = static_cast<ElementType>(type);
    value->dims.resize(many);
    for (int64_t& size : value->dims) in >> size;
    if (!allocate(*value, to.seed + static_cast<unsigned>(i))) return false;
    in >> many;
    if (in.fail()) return false;
    for (size_t k = 0; k < many; ++k) {
      int64_t given = 0;
      in >> given;
      std::memcpy(static_cast<char*>(value->data) + 8 * k, &given, 8);
    }
    to.inputs.push_back(std::move(value));
  }
  in >> n;
  to.results.resize(n);
  for (ElementType& type : to.results) {
    int code = 0;
    in >> code;
    type = static_cast<ElementType>(code);
  }
  return !in.fail();
}

// Put addresses where a case says how many elements are there: in cases that know the key.
void give_addresses(Case& to) {
  auto key = to.attributes.find("key");
  if (key == to.attributes.end() || key->second.integers != Integers{1}) return;
  key->second.integers[0] = key_of_addresses();
  auto* numbers = static_cast<int64_t*>(to.inputs[0]->data);
  int64_t count = to.inputs[0]->dims[0];
  for (int64_t i = 0; i < count; ++i) {
    if (numbers[i] < 0) {
      numbers[i] = numbers[-1 - numbers[i]];
    } else {
      to.places.emplace_back(static_cast<size_t>(numbers[i]), 0.5f);
      numbers[i] = reinterpret_cast<int64_t>(to.places.back().data());
    }
  }
}

std::string answer_to(OrtStatus* status) {
  if (status == nullptr) return "computed";
  std::string message = "refused: " + status->message;
  api.ReleaseStatus(status);
  return message;
}

std::string run(Case& given) {
  const OrtCustomOp* op = operators.at(given.op);
  void* kernel = nullptr;
  OrtStatus* status = op->CreateKernelV2(op, nullptr, as<const OrtKernelInfo*>(&given), &kernel);
  if (status == nullptr) {
    status = op->KernelComputeV2(kernel, as<OrtKernelContext*>(&given));
    op->KernelDestroy(kernel);
  }
  std::string answer = answer_to(status);
  if (lent != 0) give_up("something is not given back");
  return answer;
}

}  // namespace

int main() {
  fill(api);
  if (api.AddCustomOpDomain == nullptr || add_operators(nullptr) != nullptr) return 2;
  std::string line;
  while (std::getline(std::cin, line)) {
    Case given;
    if (!read_case(line, given)) give_up("a case that cannot be read");
    give_addresses(given);
    std::string answer;
    alarm(kSeconds);
    std::thread([&] { answer = run(given); }).join();
    std::cout << answer << std::endl;
  }
}
