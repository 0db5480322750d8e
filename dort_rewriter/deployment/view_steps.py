"""The views by which results are made of what a graph gives: those that are saved, and no others.

A file may not choose among the operators of torch: some believe what they are told
(``aten::_reshape_alias`` and ``aten::as_strided_`` look at no storage). Each that is saved stands
here with the arguments it takes. Of those torch checks sizes, strides and offsets, against the
tensor or its storage and without an overflow; before ``as_strided_`` it is asked for that view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dort_rewriter.deployment.plain import expect, text
from dort_rewriter.runtime.argument_encoding import STRIDED
from dort_rewriter.signature import FROM_PAIRS, InputDim, InputSize, SizeExpression, ViewStep

_STEPS: Mapping[str, str] = {
    "aten::_conj": "",
    "aten::_neg_view": "",
    "aten::alias": "",
    "aten::as_strided": "size:sizes stride:sizes storage_offset:size?",
    "aten::detach": "",
    "aten::diagonal": "offset:int dim1:int dim2:int",
    "aten::expand": "size:sizes implicit:flag",
    "aten::permute": "dims:ints",
    "aten::select.int": "dim:int index:size",
    "aten::slice.Tensor": "dim:int start:size? end:size? step:size",
    "aten::split.Tensor": "split_size:size dim:int",
    "aten::split_with_sizes": "split_sizes:sizes dim:int",
    "aten::squeeze": "",
    "aten::squeeze.dim": "dim:int",
    "aten::squeeze.dims": "dim:ints",
    "aten::t": "",
    "aten::transpose.int": "dim0:int dim1:int",
    "aten::unbind.int": "dim:int",
    "aten::unfold": "dimension:int size:size step:size",
    "aten::unsqueeze": "dim:int",
    "aten::view": "size:sizes",
    "aten::view.dtype": "dtype:dtype",
    "aten::view_as_complex": "",
    "aten::view_as_real": "",
    "getitem": "index:int",
    "lay_out": "strides:sizes",
    "permute_": "order:ints",
    FROM_PAIRS: "",
    STRIDED: "size:sizes stride:sizes storage_offset:size?",
}
"""Names and kinds of the arguments after the tensor; those of ``?`` may be None. Those at the end
may be left out where torch has a default."""

_WRITTEN_AS = {"aten::as_strided_": STRIDED}
"""Steps that a compiled call takes as they are, and a saved one takes with a check."""


def is_saved(op: str) -> bool:
    """Whether a saved model may take a step."""
    return _WRITTEN_AS.get(op, op) in _STEPS


def checked_step(op: Any, args: Any, kwargs: Any) -> ViewStep:
    """A step that was read; :class:`ValueError` for one that is not saved."""
    op = text(op, "view")
    op = _WRITTEN_AS.get(op, op)
    expect(op in _STEPS, "view", op)
    kinds = dict(part.split(":") for part in _STEPS[op].split())
    names = list(kinds)
    expect(isinstance(args, tuple) and len(args) <= len(names), f"argument of {op}", args)
    given = dict(zip(names, args, strict=False))
    expect(isinstance(kwargs, tuple), "argument", kwargs)
    for name, value in kwargs:
        expect(name in kinds and name not in given, f"argument of {op}", name)
        given[name] = value
    for name, value in given.items():
        expect(_fits(value, kinds[name]), f"{name} of {op}", value)
    return ViewStep(op, args, kwargs)


def _fits(value: Any, kind: str) -> bool:
    match kind:
        case "int":
            return is_size(value) and type(value) is int
        case "flag":
            return type(value) is bool
        case "dtype":
            return isinstance(value, torch.dtype)
        case "size":
            return is_size(value)
        case "size?":
            return value is None or is_size(value)
        case "ints":
            return isinstance(value, tuple) and all(type(v) is int and is_size(v) for v in value)
    return isinstance(value, tuple) and all(map(is_size, value))


def is_size(value: Any) -> bool:
    """Whether a value is a number that torch takes, or how to compute one."""
    if type(value) is int:
        return bool(-(2**63) <= value < 2**63)
    return isinstance(value, InputSize | InputDim | SizeExpression)
