"""Complex numbers in a model: pairs of reals, along a last dimension of two.

ONNX Runtime has no complex tensors. What only moves elements about is what it is for reals, with
one dimension more; arithmetic takes the pairs apart. Both work in files, too. What has no
converter here a session calls in torch, which sees complex numbers again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dort_rewriter.export.complex_numbers.arithmetic import ARITHMETIC
from dort_rewriter.export.complex_numbers.creating import CREATING
from dort_rewriter.export.complex_numbers.fourier import FOURIER
from dort_rewriter.export.complex_numbers.moving import moving_converters
from dort_rewriter.export.complex_numbers.pairs import Complex, has_complex, is_complex
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Converter, make_converter
from dort_rewriter.graph.values import Value

__all__ = ["complex_converters", "has_complex"]


@functools.cache
def complex_converters() -> Mapping[str, Converter]:
    """The converters of operators on complex numbers, by name."""
    computing = {**ARITHMETIC, **CREATING, **FOURIER}
    return {
        **moving_converters(),
        **{name: _computing(name, function) for name, function in computing.items()},
    }


def _computing(name: str, function: Callable[..., Any]) -> Converter:
    """The converter of an operator whose complex arguments are to be told from the others."""

    def convert(op: Recorder, *args: Any, **kwargs: Any) -> Any:
        node = op.fx_node
        assert node is not None
        return function(op, *map(_told, node.args, args), **kwargs)

    return dataclasses.replace(make_converter(name, function), function=convert)


def _told(argument: Any, value: Any) -> Any:
    is_node = isinstance(argument, torch.fx.Node) and isinstance(value, Value)
    return Complex(value) if is_node and is_complex(argument.meta["val"]) else value
