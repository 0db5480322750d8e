// Functions of the library of torch that the process has loaded, and of those it was linked to.
#pragma once

#include <dlfcn.h>

#include <initializer_list>

namespace torch_library {

// The library of torch that the process has loaded already; null when there is none.
inline void* loaded() {
  for (const char* name : {"libtorch_cpu.so", "libtorch_cpu.dylib", "@rpath/libtorch_cpu.dylib"}) {
    // NOTE: that makes one user more, who never leaves: torch stays loaded anyway.
    if (void* found = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return found;
  }
  return nullptr;
}

// A function by its name, null where there is none.
template <typename F>
F* optional_function(const char* name) {
  void* library = loaded();
  return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
}

}  // namespace torch_library
