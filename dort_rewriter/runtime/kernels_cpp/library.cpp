// What ONNX Runtime calls when the library is registered with the options of a session.

#include "batch_norm.h"
#include "cross_entropy.h"
#include "depthwise.h"
#include "elementwise.h"
#include "elementwise_at.h"
#include "gelu.h"
#include "mkl_attention.h"
#include "mkl_products.h"
#include "norms.h"
#include "order.h"
#include "reductions.h"
#include "rotary.h"
#include "scatter.h"
#include "softmax.h"
#include "torch_attention.h"
#include "torch_call.h"
#include "torch_convolution.h"
#include "torch_products.h"
#include "transpose.h"
#include "tri_matrix.h"
#include "windows.h"
#include "write_rows.h"

// Make the operators known to the sessions of some options.
OrtStatus* add_operators(OrtSessionOptions* options) {
  return guarded([&] {
    // Shared by all sessions, for as long as the library is loaded.
    static OrtCustomOpDomain* const domain = [] {
      OrtCustomOpDomain* created = nullptr;
      check(api.CreateCustomOpDomain("dort_rewriter", &created));
      for (const OrtCustomOp* op :
           {operator_of<Elementwise>(), operator_of<Rotary>(), operator_of<ScatterZeros>(),
            operator_of<MaxPool>(), operator_of<MaxPoolGrad>(), operator_of<Columns>(),
            operator_of<ColumnsGrad>(), operator_of<BatchNorm>(), operator_of<BatchNormGrad>(),
            operator_of<Sum>(), operator_of<LayerNorm>(), operator_of<LayerNormGrad>(),
            operator_of<SoftmaxGrad>(), operator_of<GeluGrad>(), operator_of<CrossEntropyGrad>(),
            operator_of<RmsNorm>(), operator_of<RmsNormGrad>(), operator_of<Softmax>(),
            operator_of<TransposedElementwise>(), operator_of<ElementwiseList>(),
            operator_of<ElementwiseListAt>(), operator_of<WriteRows>(),
            operator_of<TransposeToFloat>(), operator_of<TransposeToFloat16>(),
            operator_of<TransposeToBfloat16>(),
            operator_of<TriMatrix>(), operator_of<Order>(), operator_of<DepthwiseConv>(),
            operator_of<Variance>()}) {
        check(api.CustomOpDomain_Add(created, op));
      }
      for (const auto& ops : {torch_products(), mkl_products(), torch_attention(), mkl_attention(),
                              torch_convolutions(), torch_calls()}) {
        for (const OrtCustomOp* op : ops) check(api.CustomOpDomain_Add(created, op));
      }
      return created;
    }();
    check(api.AddCustomOpDomain(options, domain));
  });
}

// Say what threads the sessions have that this thread makes from now on: how many, and whether
// kernels share their work between those of torch instead.
EXPORTED void make_kernels_for(int64_t threads, int beside_torch) {
  threads_of_session = {beside_torch != 0, threads};
}

// The number that nodes name to be given addresses.
EXPORTED int64_t address_key() { return key_of_addresses(); }

// Say whether a program, and the registers of its results, are what is run as one loop.
EXPORTED int is_loop(const int64_t* program, size_t size, const int64_t* results, size_t count) {
  if (size % 5 != 0) return 0;
  try {
    Integers code(program, program + size), registers(results, results + count);
    return formulas::find_optimizer_step(code, registers).loop != nullptr ? 1 : 0;
  } catch (...) {  // there is no memory
    return 0;
  }
}

// Let kernels call Python: the addresses in the order of `python::Interface`. 0 when there are others.
EXPORTED int call_python(const void* const* addresses, size_t count) {
  if (count * sizeof(void*) != sizeof(python::Interface)) return 0;
  std::copy_n(reinterpret_cast<const char*>(addresses), sizeof(python::Interface),
              reinterpret_cast<char*>(&python::interface));
  python::is_there = true;
  return 1;
}

EXPORTED OrtStatus* ORT_CALL RegisterCustomOps(OrtSessionOptions* options,
                                               const OrtApiBase* base) {
  const OrtApi* table = base->GetApi(kApiVersion);
  if (table == nullptr) {  // older than this library: there is no table to make a message with
    table = base->GetApi(1);
    auto create = *reinterpret_cast<decltype(Api::CreateStatus) const*>(table);
    return create(kFail, "onnxruntime is older than version 1.18");
  }
  api.load(table);
  return add_operators(options);
}
