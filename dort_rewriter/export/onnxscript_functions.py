"""Functions of onnxscript as converters: their operators are recorded in place.

They are Python functions calling onnxscript's operators; they run here under an evaluator that
hands every operator to our recorder.

NOTE: onnxscript is imported when the first function runs, not before: its import costs more than
the conversion of a model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Converter, Refused
from dort_rewriter.forks import SafeLock
from dort_rewriter.graph.schemas import op_info

_lock = SafeLock()
"""Held while a function runs: onnxscript keeps its current evaluator in a global."""


def is_onnxscript_function(function: object) -> bool:
    """Whether a function is one that onnxscript made; it need not be imported to ask."""
    return type(function).__module__.partition(".")[0] == "onnxscript"


def onnxscript_converter(name: str, function: Callable[..., Any], owner: str = "") -> Converter:
    """The converter that runs a function of onnxscript; `owner` is whose it is, for messages."""
    signature = getattr(function, "op_signature", None)
    parameters = None if signature is None else frozenset(signature.params_map)
    label = f"{owner or 'the function of '}{name}"
    return Converter(name, functools.partial(_run, label, function), parameters=parameters)


_REPEATED = (
    ": it is run as Python, once, when the model is made, so that the number of repetitions of a "
    "loop is a number, not a tensor"
)


def _run(label: str, function: Callable[..., Any], op: Recorder, *args: Any, **kwargs: Any) -> Any:
    from onnxscript import evaluator

    if "dtype" in kwargs and kwargs["dtype"] is None:
        kwargs["dtype"] = -1  # torchlib's word for "no dtype"
    with _lock, evaluator.default_as(_Evaluator(op)):
        try:
            return function(*args, **kwargs)
        # The body is not ours and refuses in every way Python has; the text goes to the user.
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            NotImplementedError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as e:
            advice = _REPEATED if "cannot be interpreted as an integer" in str(e) else ""
            raise Refused(f"{label} failed: {type(e).__name__}: {e}{advice}") from e


_ALL_OUTPUTS = frozenset({"Dropout", "LayerNormalization", "MaxPool"})
"""Operators of which torchlib unpacks the optional outputs as well."""


class _Evaluator:
    """onnxscript's evaluator protocol on top of the recorder.

    NOTE: without a method ``eval``, the protocol before 0.6: onnxscript would call it instead.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def eval_op(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record an operator; inputs given by name are put in their place."""
        inputs, attributes = list(args), dict(kwargs)
        if domain := op.opset.domain:
            self._recorder.import_domain(domain, op.opset.version)
            return self._recorder.call(op.name, *inputs, domain=domain, **attributes)
        info = op_info(op.name, self._recorder.opset)
        if op.name in _ALL_OUTPUTS:
            attributes["outputs"] = len(info.outputs)
        for i, slot in enumerate(info.inputs):
            if slot.name in attributes:
                inputs.extend([None] * (i + 1 - len(inputs)))
                inputs[i] = attributes.pop(slot.name)
        return self._recorder.call(op.name, *inputs, **attributes)

    def eval_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a scripted function as the Python it is: its nodes are recorded in place."""
        return function.function(*args, **kwargs)
