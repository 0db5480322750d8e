"""Operators that compute each element of their result from the elements at the same place."""

from __future__ import annotations

__all__ = ["BROADCASTING", "UNARY"]

UNARY = (
    "Abs",
    "Cast",
    "Ceil",
    "Cos",
    "Erf",
    "Exp",
    "Floor",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "Neg",
    "Not",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Sqrt",
    "Tanh",
)
"""With one input, and with attributes that do not depend on shapes."""

BROADCASTING = (
    "Add",
    "And",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "Pow",
    "Sub",
    "Where",
    "Xor",
)
"""With inputs that broadcast to the shape of the result."""
