// Functions of the library of torch that the process has loaded, and of those it was linked to.
#pragma once

#include <initializer_list>

#if defined(_WIN32)
extern "C" __declspec(dllimport) void* __stdcall GetModuleHandleA(const char*);
extern "C" __declspec(dllimport) void* __stdcall GetProcAddress(void*, const char*);
#else
#include <dlfcn.h>
#endif

namespace torch_library {

// The library of torch that the process has loaded already; null when there is none.
inline void* loaded() {
#if defined(_WIN32)
  return GetModuleHandleA("torch_cpu.dll");
#else
  for (const char* name : {"libtorch_cpu.so", "libtorch_cpu.dylib", "@rpath/libtorch_cpu.dylib"}) {
    // NOTE: that makes one user more, who never leaves: torch stays loaded anyway.
    if (void* found = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return found;
  }
  return nullptr;
#endif
}

// A function by its name, null where there is none.
template <typename F>
F* optional_function(const char* name) {
  void* library = loaded();
  if (library == nullptr) return nullptr;
#if defined(_WIN32)
  return reinterpret_cast<F*>(GetProcAddress(library, name));
#else
  return reinterpret_cast<F*>(dlsym(library, name));
#endif
}

}  // namespace torch_library
