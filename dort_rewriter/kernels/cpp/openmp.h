// The threads of OpenMP in which torch's kernels run.
//
// A session with kernels of torch in it has its other kernels run in them too: a second pool would
// wait for the cores on which these spin after each of torch's kernels.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "torch_symbols.h"

class OpenMp {
 public:
  // That of torch: the one that it was linked to.
  static const OpenMp& get() {
    static const OpenMp found;
    return found;
  }

  // Whether work can be shared here and now.
  bool is_there() const { return threads() > 1; }

  int64_t threads() const { return run_ != nullptr && threads_ != nullptr ? threads_() : 1; }

  // Call work(i) for 0..parts, which must not throw.
  template <typename F>
  void share(int64_t parts, F&& work) const {
    struct Job {
      F& work;
      int64_t parts;
      std::atomic<int64_t> next{0};
    } job{work, parts};
    auto take = [](void* data) {
      auto& job = *static_cast<Job*>(data);
      for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.parts;) {
        job.work(i);
      }
    };
    run_(take, &job, static_cast<unsigned>(std::min<int64_t>(threads_(), parts)), 0);
  }

 private:
  using Run = void(void (*work)(void*), void* data, unsigned threads, unsigned flags);
  Run* run_ = torch_library::optional_function<Run>("GOMP_parallel");
  int (*threads_)() = torch_library::optional_function<int()>("omp_get_max_threads");
};

// The threads of a session.
struct Threads {
  bool openmp = false;  // those of torch, for a session with kernels of torch, not its own
  int64_t count = 1;    // of its own
};

// Those that kernels share their work between which this thread makes now.
inline thread_local Threads threads_of_session;
