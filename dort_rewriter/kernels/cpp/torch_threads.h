// torch's kernels in the threads of a session: each works in the one that calls it.
//
// NOTE: else they would share their work between OpenMP's threads, which spin on the same cores.
#pragma once

#include "torch_symbols.h"

class WorksAlone {
 public:
  // Whether torch has all that is asked of it: that is so where it multiplies by MKL.
  static bool is_possible() {
    const Functions& torch = functions();
    return torch.ask != nullptr && torch.most != nullptr && torch.set != nullptr &&
           torch.set_mkl != nullptr;
  }

  WorksAlone() {
    functions().ask();  // a thread's first question sets its number, later ones leave it alone
    before_ = functions().most();
    functions().set(1);
    mkl_before_ = functions().set_mkl(1);
  }
  ~WorksAlone() {
    functions().set(before_);
    functions().set_mkl(mkl_before_);
  }
  WorksAlone(const WorksAlone&) = delete;
  WorksAlone& operator=(const WorksAlone&) = delete;

 private:
  struct Functions {
    int (*ask)() = torch_library::optional_function<int()>("_ZN2at15get_num_threadsEv");
    int (*most)() = torch_library::optional_function<int()>("omp_get_max_threads");
    void (*set)(int) = torch_library::optional_function<void(int)>("omp_set_num_threads");
    int (*set_mkl)(int) = torch_library::optional_function<int(int)>("MKL_Set_Num_Threads_Local");
  };

  static const Functions& functions() {
    static const Functions found;
    return found;
  }

  int before_, mkl_before_;
};
