// What this library needs of ONNX Runtime's C interface, and nothing else.
//
// The interface is a table of functions that only ever grows at its end: an entry is called by its
// position. Everything here stands in the table since version 18 of the interface.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define ORT_CALL __stdcall
#define EXPORTED extern "C" __declspec(dllexport)
#else
#define ORT_CALL
#define EXPORTED extern "C" __attribute__((visibility("default")))
#endif

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
  const OrtApi*(ORT_CALL* GetApi)(uint32_t version);
  const char*(ORT_CALL* GetVersionString)();
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
  void*(ORT_CALL* CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char*(ORT_CALL* GetName)(const OrtCustomOp*);
  const char*(ORT_CALL* GetExecutionProviderType)(const OrtCustomOp*);
  ElementType(ORT_CALL* GetInputType)(const OrtCustomOp*, size_t);
  size_t(ORT_CALL* GetInputTypeCount)(const OrtCustomOp*);
  ElementType(ORT_CALL* GetOutputType)(const OrtCustomOp*, size_t);
  size_t(ORT_CALL* GetOutputTypeCount)(const OrtCustomOp*);
  void(ORT_CALL* KernelCompute)(void*, OrtKernelContext*);
  void(ORT_CALL* KernelDestroy)(void*);
  Arity(ORT_CALL* GetInputCharacteristic)(const OrtCustomOp*, size_t);
  Arity(ORT_CALL* GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int(ORT_CALL* GetInputMemoryType)(const OrtCustomOp*, size_t);
  int(ORT_CALL* GetVariadicInputMinArity)(const OrtCustomOp*);
  int(ORT_CALL* GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int(ORT_CALL* GetVariadicOutputMinArity)(const OrtCustomOp*);
  int(ORT_CALL* GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus*(ORT_CALL* CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*,
                                       void**);
  OrtStatus*(ORT_CALL* KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus*(ORT_CALL* InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int(ORT_CALL* GetStartVersion)(const OrtCustomOp*);
  int(ORT_CALL* GetEndVersion)(const OrtCustomOp*);
  size_t(ORT_CALL* GetMayInplace)(int**, int**);
  void(ORT_CALL* ReleaseMayInplace)(int*, int*);
  size_t(ORT_CALL* GetAliasMap)(int**, int**);
  void(ORT_CALL* ReleaseAliasMap)(int*, int*);
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
#define DECLARED(place, result, name, given) result(ORT_CALL* name) given;
  ORT_FUNCTIONS(DECLARED)
#undef DECLARED

  void load(const OrtApi* table) {
    auto entries = reinterpret_cast<void* const*>(table);
#define TAKEN(place, result, name, given) name = reinterpret_cast<decltype(name)>(entries[place]);
    ORT_FUNCTIONS(TAKEN)
#undef TAKEN
  }
};
