// What ONNX Runtime calls when the library is registered with the options of a session.
//
// NOTE: the compiler is told to include all headers of the folder operators/ before this file.

#include "kernel.h"
#include "optimizer_steps.h"
#include "program.h"
#include "python.h"

// Make the operators known to the sessions of some options.
OrtStatus* add_operators(OrtSessionOptions* options) {
  return guarded([&] {
    // Shared by all sessions, for as long as the library is loaded.
    static OrtCustomOpDomain* const domain = [] {
      OrtCustomOpDomain* created = nullptr;
      check(api.CreateCustomOpDomain("dort_rewriter", &created));
      for (const Registered& known : registered()) {
        check(api.CustomOpDomain_Add(created, known.op));
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

// What the operators declare: a list in JSON.
EXPORTED const char* declared_operators() {
  static const std::string all = [] {
    std::string joined;
    for (const Registered& known : registered()) joined += (joined.empty() ? "" : ",") + known.declared;
    return "[" + joined + "]";
  }();
  return all.c_str();
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

EXPORTED OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* table = base->GetApi(kApiVersion);
  if (table == nullptr) {  // older than this library: there is no table to make a message with
    table = base->GetApi(1);
    auto create = *reinterpret_cast<decltype(Api::CreateStatus) const*>(table);
    return create(kFail, "onnxruntime is older than version 1.18");
  }
  api.load(table);
  return add_operators(options);
}
