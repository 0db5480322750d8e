// What this library needs of ONNX Runtime's C interface, and nothing else.
//
// The interface is a table of functions that only ever grows at its end: an entry is called by its
// position. Everything here stands in the table since version 18 of the interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

// The functions of the table, under the names ONNX Runtime gives them.
struct Api {
  OrtStatus*(ORT_CALL* CreateStatus)(ErrorCode, const char*);
  OrtStatus*(ORT_CALL* CreateCustomOpDomain)(const char*, OrtCustomOpDomain**);
  OrtStatus*(ORT_CALL* CustomOpDomain_Add)(OrtCustomOpDomain*, const OrtCustomOp*);
  OrtStatus*(ORT_CALL* AddCustomOpDomain)(OrtSessionOptions*, OrtCustomOpDomain*);
  OrtStatus*(ORT_CALL* GetTensorMutableData)(OrtValue*, void**);
  OrtStatus*(ORT_CALL* CastTypeInfoToTensorInfo)(const OrtTypeInfo*,
                                                 const OrtTensorTypeAndShapeInfo**);
  OrtStatus*(ORT_CALL* GetTensorElementType)(const OrtTensorTypeAndShapeInfo*, ElementType*);
  OrtStatus*(ORT_CALL* GetDimensionsCount)(const OrtTensorTypeAndShapeInfo*, size_t*);
  OrtStatus*(ORT_CALL* GetDimensions)(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t);
  OrtStatus*(ORT_CALL* GetTensorTypeAndShape)(const OrtValue*, OrtTensorTypeAndShapeInfo**);
  OrtStatus*(ORT_CALL* KernelInfoGetAttribute_float)(const OrtKernelInfo*, const char*, float*);
  OrtStatus*(ORT_CALL* KernelInfoGetAttribute_int64)(const OrtKernelInfo*, const char*, int64_t*);
  OrtStatus*(ORT_CALL* KernelContext_GetInputCount)(const OrtKernelContext*, size_t*);
  OrtStatus*(ORT_CALL* KernelContext_GetOutputCount)(const OrtKernelContext*, size_t*);
  OrtStatus*(ORT_CALL* KernelContext_GetInput)(const OrtKernelContext*, size_t, const OrtValue**);
  OrtStatus*(ORT_CALL* KernelContext_GetOutput)(OrtKernelContext*, size_t, const int64_t*, size_t,
                                                OrtValue**);
  void(ORT_CALL* ReleaseStatus)(OrtStatus*);
  void(ORT_CALL* ReleaseTypeInfo)(OrtTypeInfo*);
  void(ORT_CALL* ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo*);
  OrtStatus*(ORT_CALL* KernelInfoGetAttributeArray_int64)(const OrtKernelInfo*, const char*,
                                                          int64_t*, size_t*);
  OrtStatus*(ORT_CALL* KernelInfo_GetInputCount)(const OrtKernelInfo*, size_t*);
  OrtStatus*(ORT_CALL* KernelInfo_GetOutputCount)(const OrtKernelInfo*, size_t*);
  OrtStatus*(ORT_CALL* KernelInfo_GetInputTypeInfo)(const OrtKernelInfo*, size_t, OrtTypeInfo**);
  OrtStatus*(ORT_CALL* KernelInfo_GetOutputTypeInfo)(const OrtKernelInfo*, size_t, OrtTypeInfo**);
  OrtStatus*(ORT_CALL* KernelContext_ParallelFor)(const OrtKernelContext*, void (*)(void*, size_t),
                                                  size_t, size_t, void*);

  void load(const OrtApi* table) {
    auto entries = reinterpret_cast<void* const*>(table);
    auto take = [&](auto& function, int position) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(entries[position]);
    };
    take(CreateStatus, 0);
    take(CreateCustomOpDomain, 26);
    take(CustomOpDomain_Add, 27);
    take(AddCustomOpDomain, 28);
    take(GetTensorMutableData, 51);
    take(CastTypeInfoToTensorInfo, 55);
    take(GetTensorElementType, 60);
    take(GetDimensionsCount, 61);
    take(GetDimensions, 62);
    take(GetTensorTypeAndShape, 65);
    take(KernelInfoGetAttribute_float, 85);
    take(KernelInfoGetAttribute_int64, 86);
    take(KernelContext_GetInputCount, 88);
    take(KernelContext_GetOutputCount, 89);
    take(KernelContext_GetInput, 90);
    take(KernelContext_GetOutput, 91);
    take(ReleaseStatus, 93);
    take(ReleaseTypeInfo, 98);
    take(ReleaseTensorTypeAndShapeInfo, 99);
    take(KernelInfoGetAttributeArray_int64, 163);
    take(KernelInfo_GetInputCount, 230);
    take(KernelInfo_GetOutputCount, 231);
    take(KernelInfo_GetInputTypeInfo, 234);
    take(KernelInfo_GetOutputTypeInfo, 235);
    take(KernelContext_ParallelFor, 274);
  }
};
