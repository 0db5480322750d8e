"""The lines of a call that make the results of what a model gave."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime.argument_encoding import (
    find_step,
    keys_of_results,
    spell_argument,
    spell_literal,
    spell_size,
    spell_tuple,
)
from dort_rewriter.signature import GraphSignature, OutputSlot, ViewStep

__all__ = ["ResultLines"]

_METHODS = {
    "aten::as_strided": "as_strided",
    "aten::as_strided_": "as_strided_",
    "aten::permute": "permute",
    "aten::t": "t",
    "aten::transpose.int": "transpose",
    "aten::unsqueeze": "unsqueeze",
    "aten::view": "view",
}
"""Views that tensors have as methods of the same arguments, at a third of the cost."""


class ResultLines:
    """Lines of a function, and the constants that they refer to by name.

    What the model gave is ``y0``, ``y1``, ..., the arguments are ``a0``, ``a1``, ...; with
    ``whole`` truth values are what they are, otherwise bytes.
    """

    def __init__(self, signature: GraphSignature, *, whole: bool = False) -> None:
        self.signature = signature
        self.whole = whole
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}

    def _results(self) -> None:
        model_names = {name: i for i, name in enumerate(self.signature.output_names)}
        keys = keys_of_results(self.signature)
        uses = Counter(key[:n] for key in keys for n in range(3, len(key) + 1))
        seen: dict[tuple[Any, ...], str] = {}
        for position, (slot, key) in enumerate(zip(self.signature.outputs, keys, strict=True)):
            value = self._origin(slot, model_names)
            for n, step in enumerate(slot.views, 3):
                steps, last = key[:n], n == len(key)
                made = seen.get(steps, "")
                if made and not (last and made.startswith("r")):  # two results are two tensors
                    value = made
                    continue
                value = self._view(value, step)
                if uses[steps] > 1 and not last:  # a view that several results are seen in
                    seen[steps] = f"v{len(seen)}"
                    self._line(f"{seen[steps]} = {value}")
                    value = seen[steps]
            self._line(f"r{position} = {value}")
            seen[key] = f"r{position}"
        self._line(f"return {spell_tuple(f'r{i}' for i in range(len(self.signature.outputs)))}")

    def _origin(self, slot: OutputSlot, model_names: dict[str, int]) -> str:
        match slot.source:
            case "constant":
                return "None" if slot.kind == "none" else spell_literal(slot.value)
            case "size":
                if slot.size is None:
                    raise ExecutionError(f"Output {slot.name!r} has no size to compute.")
                return spell_size(slot.size)
            case "input":
                return f"a{slot.index}"
            case "output":
                return f"r{slot.index}"
        value = f"y{model_names[slot.name]}"
        if slot.kind == "tensor":
            is_bytes = slot.dtype is torch.bool and not self.whole
            return self._bool(value, slot) if is_bytes else value
        return f"{slot.kind}({value}.item())"

    def _bool(self, value: str, slot: OutputSlot) -> str:
        """See bytes as what they are: once, where several results share them."""
        seen = f"{value}.view({self._constant('torch_bool', torch.bool)})"
        same = [
            s
            for s in self.signature.outputs
            if (s.source, s.name, s.dtype) == (slot.source, slot.name, slot.dtype)
        ]
        if len(same) == 1:
            return seen
        name = value.replace("y", "m")
        if same[0] is slot:
            self._line(f"{name} = {seen}")
        return name

    def _view(self, value: str, step: ViewStep) -> str:
        given = [self._argument(a) for a in step.args]
        given += [f"{name}={self._argument(a)}" for name, a in step.kwargs]
        if (method := _METHODS.get(step.op)) is not None:
            return f"{value}.{method}({', '.join(given)})"
        function = self._constant(
            f"view_{step.op.replace('::', '_').replace('.', '_')}", find_step(step.op)
        )
        return f"{function}({', '.join([value, *given])})"

    def _argument(self, value: object) -> str:
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return self._constant(str(value).replace(".", "_"), value)
        return spell_argument(value)

    def _constant(self, name: str, value: object) -> str:
        self.constants[name] = value
        return name

    def _line(self, text: str) -> None:
        self.lines.append(f"    {text}")
