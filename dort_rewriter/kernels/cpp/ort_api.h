// What this library needs of ONNX Runtime's C interface, and nothing else.
//
// The interface is a table of functions that only ever grows at its end: an entry is called by its
// position. Everything here stands in the table since version 18 of the interface.
#pragma once

#include <cstddef>
#include <cstdint>

#define EXPORTED extern "C" __attribute__((visibility("default")))

constexpr uint32_t kApiVersion = 18;

struct OrtApi;
struct OrtStatus;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtShapeInferContext;

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

enum ElementType : int {
  kAny = 0,
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kBFloat16 = 16,
  // Of a class of this library, whatever types its other inputs and results have:
  kFloating = -1,  // one that is computed in float
  kEach = -2       // one that the class checks
};
enum Arity : int { kRequired = 0, kOptional = 1, kVariadic = 2 };
enum ErrorCode : int { kFail = 1, kInvalidArgument = 2, kNotImplemented = 9 };

// The record that describes an operator, as of version 18. Its functions may be null only where
// ONNX Runtime says so: from CreateKernel and KernelCompute, replaced by the V2 that return errors.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ElementType (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ElementType (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  Arity (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  Arity (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

// The functions of the table: their places, what they return, their names and what they take.
#define ORT_FUNCTIONS(X) \
  X(0, OrtStatus*, CreateStatus, (ErrorCode, const char*)) \
  X(26, OrtStatus*, CreateCustomOpDomain, (const char*, OrtCustomOpDomain**)) \
  X(27, OrtStatus*, CustomOpDomain_Add, (OrtCustomOpDomain*, const OrtCustomOp*)) \
  X(28, OrtStatus*, AddCustomOpDomain, (OrtSessionOptions*, OrtCustomOpDomain*)) \
  X(51, OrtStatus*, GetTensorMutableData, (OrtValue*, void**)) \
  X(55, OrtStatus*, CastTypeInfoToTensorInfo, \
     (const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**)) \
  X(60, OrtStatus*, GetTensorElementType, (const OrtTensorTypeAndShapeInfo*, ElementType*)) \
  X(61, OrtStatus*, GetDimensionsCount, (const OrtTensorTypeAndShapeInfo*, size_t*)) \
  X(62, OrtStatus*, GetDimensions, (const OrtTensorTypeAndShapeInfo*, int64_t*, size_t)) \
  X(65, OrtStatus*, GetTensorTypeAndShape, (const OrtValue*, OrtTensorTypeAndShapeInfo**)) \
  X(85, OrtStatus*, KernelInfoGetAttribute_float, (const OrtKernelInfo*, const char*, float*)) \
  X(86, OrtStatus*, KernelInfoGetAttribute_int64, (const OrtKernelInfo*, const char*, int64_t*)) \
  X(88, OrtStatus*, KernelContext_GetInputCount, (const OrtKernelContext*, size_t*)) \
  X(89, OrtStatus*, KernelContext_GetOutputCount, (const OrtKernelContext*, size_t*)) \
  X(90, OrtStatus*, KernelContext_GetInput, (const OrtKernelContext*, size_t, const OrtValue**)) \
  X(91, OrtStatus*, KernelContext_GetOutput, \
     (OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**)) \
  X(93, void, ReleaseStatus, (OrtStatus*)) \
  X(98, void, ReleaseTypeInfo, (OrtTypeInfo*)) \
  X(99, void, ReleaseTensorTypeAndShapeInfo, (OrtTensorTypeAndShapeInfo*)) \
  X(163, OrtStatus*, KernelInfoGetAttributeArray_int64, \
     (const OrtKernelInfo*, const char*, int64_t*, size_t*)) \
  X(230, OrtStatus*, KernelInfo_GetInputCount, (const OrtKernelInfo*, size_t*)) \
  X(231, OrtStatus*, KernelInfo_GetOutputCount, (const OrtKernelInfo*, size_t*)) \
  X(234, OrtStatus*, KernelInfo_GetInputTypeInfo, (const OrtKernelInfo*, size_t, OrtTypeInfo**)) \
  X(235, OrtStatus*, KernelInfo_GetOutputTypeInfo, (const OrtKernelInfo*, size_t, OrtTypeInfo**)) \
  X(274, OrtStatus*, KernelContext_ParallelFor, \
     (const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*))

struct Api {
#define DECLARED(place, result, name, given) result (*name) given;
  ORT_FUNCTIONS(DECLARED)
#undef DECLARED

  void load(const OrtApi* table) {
    auto entries = reinterpret_cast<void* const*>(table);
#define TAKEN(place, result, name, given) name = reinterpret_cast<decltype(name)>(entries[place]);
    ORT_FUNCTIONS(TAKEN)
#undef TAKEN
  }
};
