// The interpreter of the process, called through its stable C interface.
//
// No header of Python is read, and nothing is linked: who loads this library gives it the addresses
// of the functions. Where that is missing, kernels that call Python are refused, and nothing else.
#pragma once

#include <cstdio>
#include <string>

#include "kernel.h"

namespace python {

struct Object;  // PyObject

// What is called of Python, in the order in which the addresses are given.
struct Interface {
  int (*ensure_lock)();
  void (*release_lock)(int);
  Object* (*new_tuple)(ptrdiff_t size);
  int (*set_item)(Object* tuple, ptrdiff_t index, Object* item);  // which it owns from then on
  Object* (*item)(Object* tuple, ptrdiff_t index);                // which the tuple owns
  ptrdiff_t (*size)(Object* tuple);
  Object* (*integer)(long long);
  long long (*value_of)(Object*);
  Object* (*view_memory)(char* data, ptrdiff_t bytes, int flags);
  Object* (*call)(Object* function, Object* arguments);
  void (*drop)(Object*);
  void (*fetch_error)(Object** type, Object** value, Object** traceback);
  void (*normalize_error)(Object** type, Object** value, Object** traceback);
  int (*set_traceback)(Object* error, Object* traceback);
  int (*store)(Object* dictionary, Object* key, Object* value);
  int (*contains)(Object* dictionary, Object* key);
  // Objects of Python, which it keeps for as long as it runs:
  Object* function;  // called with the number of a call and its inputs
  Object* calls;     // a dictionary of the numbers that there are
  Object* failures;  // a dictionary for what was raised, by number
};

inline Interface interface{};
inline bool is_there = false;

// The lock of the interpreter, held.
class Locked {
 public:
  Locked() : state_(interface.ensure_lock()) {}
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() { interface.release_lock(state_); }

 private:
  int state_;
};

// An object that is dropped at the end: the lock is to be held then.
class Owned {
 public:
  explicit Owned(Object* object) : object_(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { drop(); }

  Object* get() const { return object_; }
  Object* release() {
    Object* object = object_;
    object_ = nullptr;
    return object;
  }
  void drop() {
    if (object_ != nullptr) interface.drop(release());
  }

 private:
  Object* object_;
};

// Keep what was raised where Python finds it, and fail with its number.
[[noreturn]] ONCE inline void fail_as_raised() {
  static std::atomic<long long> raised{0};
  const long long number = ++raised;
  Object *type = nullptr, *value = nullptr, *traceback = nullptr;
  interface.fetch_error(&type, &value, &traceback);
  interface.normalize_error(&type, &value, &traceback);
  {
    Owned kind(type), error(value), lines(traceback), key(interface.integer(number));
    if (error.get() != nullptr && key.get() != nullptr) {
      if (lines.get() != nullptr) interface.set_traceback(error.get(), lines.get());
      interface.store(interface.failures, key.get(), error.get());
    }
  }
  char text[64];
  std::snprintf(text, sizeof text, "a call of torch raised exception %lld", number);
  fail(kFail, text);
}

inline Object* checked(Object* object) {
  if (object == nullptr) fail_as_raised();
  return object;
}

// A tuple of as many objects, each made by a function of its place.
template <typename F>
Object* tuple_of(size_t size, F&& make) {
  Owned tuple(checked(interface.new_tuple(static_cast<ptrdiff_t>(size))));
  for (size_t i = 0; i < size; ++i) {
    interface.set_item(tuple.get(), static_cast<ptrdiff_t>(i), checked(make(i)));
  }
  return tuple.release();
}

inline Object* integer(long long value) { return checked(interface.integer(value)); }

// An item of a tuple; what is no tuple, or too short, has raised an exception.
inline Object* item(Object* tuple, size_t index) {
  return checked(interface.item(tuple, static_cast<ptrdiff_t>(index)));
}

}  // namespace python
