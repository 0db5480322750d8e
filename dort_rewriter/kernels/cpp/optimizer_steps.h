// What torch's optimizers compute for each parameter in a compiled step: programs that are loops.
//
// Over many parameters a step is bound by memory. Instructions stand in the order in which the rules
// of this package write them, of torch 2.8 and 2.13; other programs run all the same, slower.
#pragma once

#include "loops.h"

namespace formulas {

// gradient, parameter; rate
inline constexpr auto kSgd = formula(numbers(2), results(1), mul(in(0), in(2)), add(in(1), 0));

// parameter, gradient; decay, rate
inline constexpr auto kSgdDecay =
    formula(numbers(2, 3), results(3), mul(in(0), in(2)), add(in(1), 0), mul(in(3), 1),
            add(in(0), 2));

// buffer, gradient, parameter; momentum, rate
inline constexpr auto kMomentum =
    formula(numbers(3, 4), results(1, 3), mul(in(0), in(3)), add(in(1), 0), mul(in(4), 1),
            add(in(2), 2));

// parameter, gradient, buffer; decay, momentum, rate
inline constexpr auto kMomentumDecay =
    formula(numbers(3, 4, 5), results(3, 5), mul(in(0), in(3)), add(in(1), 0), mul(in(2), in(4)),
            add(1, 2), mul(in(5), 3), add(in(0), 4));

// buffer, gradient, parameter; momentum, rate
inline constexpr auto kNesterov =
    formula(numbers(3, 4), results(1, 5), mul(in(0), in(3)), add(in(1), 0), mul(in(3), 1),
            add(in(1), 2), mul(in(4), 3), add(in(2), 4));

// parameter, gradient, buffer; decay, momentum, rate
inline constexpr auto kNesterovDecay =
    formula(numbers(3, 4, 5), results(3, 7), mul(in(0), in(3)), add(in(1), 0), mul(in(2), in(4)),
            add(1, 2), mul(in(4), 3), add(1, 4), mul(in(5), 5), add(in(0), 6));

// squares, gradient, parameter; smoothing and what is left of it, epsilon, rate
inline constexpr auto kRmsprop =
    formula(numbers(3, 4, 5, 6), results(3, 8), mul(in(0), in(3)), mul(in(1), in(1)),
            mul(in(4), 1), add(0, 2), root(3), add(in(5), 4), div(in(1), 5), mul(in(6), 6),
            add(in(2), 7));

// squares, gradient, buffer, parameter; smoothing and what is left of it, epsilon, momentum, rate
inline constexpr auto kRmspropMomentum =
    formula(numbers(4, 5, 6, 7, 8), results(3, 8, 10), mul(in(0), in(4)), mul(in(1), in(1)),
            mul(in(5), 1), add(0, 2), root(3), add(in(6), 4), mul(in(2), in(7)), div(in(1), 5),
            add(6, 7), mul(in(8), 8), add(in(3), 9));

// squares, gradient, mean, buffer, parameter; smoothing and what is left of it, -1, epsilon,
// momentum, rate
inline constexpr auto kRmspropCentered =
    formula(numbers(5, 6, 7, 8, 9, 10), results(3, 6, 14, 16), mul(in(0), in(5)),
            mul(in(1), in(1)), mul(in(6), 1), add(0, 2), sub(in(1), in(2)), mul(in(6), 4),
            add(in(2), 5), mul(in(7), 6), mul(6, 7), add(3, 8), root(9), add(in(8), 10),
            mul(in(3), in(9)), div(in(1), 11), add(12, 13), mul(in(10), 14), add(in(4), 15));

// gradient, sum, rate, parameter; epsilon
inline constexpr auto kAdagrad =
    formula(numbers(2, 4), results(1, 6), mul(in(0), in(0)), add(in(1), 0), root(1),
            add(in(4), 2), div(in(0), 3), mul(in(2), 4), add(in(3), 5));

// squares, gradient, squared steps, parameter; smoothing and what is left of it, epsilon, rate
inline constexpr auto kAdadelta =
    formula(numbers(4, 5, 6, 7), results(3, 13, 15), mul(in(0), in(4)), mul(in(1), in(1)),
            mul(in(5), 1), add(0, 2), add(in(6), 3), root(4), add(in(2), in(6)), root(6),
            div(7, 5), mul(in(1), 8), mul(in(2), in(4)), mul(9, 9), mul(in(5), 11),
            add(10, 12), mul(in(7), 9), add(in(3), 14));

// gradient, mean, squares, two corrections, parameter; what is left of the first smoothing, the
// second and what is left of it
inline constexpr auto kAdam =
    formula(numbers(3, 4, 6, 7, 8), results(2, 6, 11), sub(in(0), in(1)), mul(in(6), 0),
            add(in(1), 1), mul(in(2), in(7)), mul(in(0), in(0)), mul(in(8), 4), add(3, 5),
            root(6), div(7, in(3)), add(in(4), 8), div(2, 9), add(in(5), 10));

// The same with the largest squares.
inline constexpr auto kAdamLargest =
    formula(numbers(4, 5, 7, 8, 9), results(2, 6, 7, 12), sub(in(0), in(1)), mul(in(7), 0),
            add(in(1), 1), mul(in(2), in(8)), mul(in(0), in(0)), mul(in(9), 4), add(3, 5),
            max(in(3), 6), root(7), div(8, in(4)), add(in(5), 9), div(2, 10), add(in(6), 11));

// parameter, gradient, mean, squares, two corrections; decay and the smoothings
inline constexpr auto kAdamDecay =
    formula(numbers(4, 5, 6, 7, 8, 9), results(4, 8, 13), mul(in(0), in(6)), add(in(1), 0),
            sub(1, in(2)), mul(in(7), 2), add(in(2), 3), mul(in(3), in(8)), mul(1, 1),
            mul(in(9), 6), add(5, 7), root(8), div(9, in(4)), add(in(5), 10), div(4, 11),
            add(in(0), 12));

// The same with a decay that is none of the gradient's.
inline constexpr auto kAdamW =
    formula(numbers(4, 5, 6, 7, 8, 9), results(3, 7, 12), mul(in(0), in(6)), sub(in(1), in(2)),
            mul(in(7), 1), add(in(2), 2), mul(in(3), in(8)), mul(in(1), in(1)), mul(in(9), 5),
            add(4, 6), root(7), div(8, in(4)), add(in(5), 9), div(3, 10), add(0, 11));

// The same with the largest squares.
inline constexpr auto kAdamWLargest =
    formula(numbers(5, 6, 7, 8, 9, 10), results(3, 7, 8, 13), mul(in(0), in(7)),
            sub(in(1), in(2)), mul(in(8), 1), add(in(2), 2), mul(in(3), in(9)),
            mul(in(1), in(1)), mul(in(10), 5), add(4, 6), max(in(4), 7), root(8), div(9, in(5)),
            add(in(6), 10), div(3, 11), add(0, 12));

// gradient, mean, squares, three corrections, parameter; the smoothings, epsilon
inline constexpr auto kNAdam =
    formula(numbers(3, 4, 5, 7, 8, 9, 10), results(2, 6, 15), sub(in(0), in(1)), mul(in(7), 0),
            add(in(1), 1), mul(in(2), in(8)), mul(in(0), in(0)), mul(in(9), 4), add(3, 5),
            div(6, in(3)), root(7), add(in(10), 8), mul(in(0), in(4)), mul(in(5), 2),
            div(10, 9), add(in(6), 12), div(11, 9), add(13, 14));

// gradient, mean, norm, correction, parameter; the smoothings, epsilon
inline constexpr auto kAdamax =
    formula(numbers(3, 5, 6, 7), results(2, 6, 9), sub(in(0), in(1)), mul(in(5), 0),
            add(in(1), 1), mul(in(2), in(6)), abs(in(0)), add(in(7), 4), max(3, 5),
            mul(in(3), 6), div(2, 7), add(in(4), 8));

ONCE inline ChosenLoop find_optimizer_step(const Integers& program, const Integers& registers) {
  return find_loop<kSgd, kSgdDecay, kMomentum, kMomentumDecay, kNesterov, kNesterovDecay, kRmsprop,
                   kRmspropMomentum, kRmspropCentered, kAdagrad, kAdadelta, kAdam, kAdamLargest,
                   kAdamDecay, kAdamW, kAdamWLargest, kNAdam, kAdamax>(program, registers);
}

}  // namespace formulas
