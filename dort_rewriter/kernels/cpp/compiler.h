// Attributes of functions, for compilers.
//
// NOTE: they inline less in a larger library: a loop over a function that is called becomes ten times
// as slow, for vectors are gone. Hence these words where a loop calls a function of one number.
#pragma once

// Of functions that are called once or twice by a kernel: compiled once, not where they are called.
#define ONCE __attribute__((noinline))
// Of functions of one number: a part of the loops that call them.
#define INLINED __attribute__((always_inline)) inline
