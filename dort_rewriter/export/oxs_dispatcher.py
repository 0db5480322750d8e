"""OxsDispatcher: onnxscript's torchlib behind the converters of this package.

torchlib's functions are Python functions calling onnxscript's operators; they run here under an
evaluator that hands every operator to our recorder. torchlib's own tables are never edited.

NOTE: onnxscript and torchlib are imported when the first operator needs them, not before: it costs
more than converting a model.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Converter, Refused
from dort_rewriter.graph.schemas import op_info

__all__ = ["DISTRUSTED", "OxsDispatcher"]

DISTRUSTED: dict[str, str] = {
    "aten::_native_batch_norm_legit": "training mode is ignored",
    "aten::_native_batch_norm_legit_functional": "training mode is ignored",
    "aten::_scaled_dot_product_efficient_attention": "logsumexp is zeros",
    "aten::_scaled_dot_product_flash_attention": "logsumexp is zeros",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "logsumexp is zeros",
    "aten::_upsample_bilinear2d_aa": "align_corners gives wrong numbers",
    "aten::avg_pool1d": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::avg_pool2d": "divisor_override is ignored",
    "aten::avg_pool3d": "divisor_override is ignored",
    "aten::cumsum": "bool gives an invalid graph",
    "aten::max_pool1d": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool1d_with_indices": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool2d": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool2d_with_indices": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool3d": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool3d_with_indices": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::native_batch_norm": "training mode is ignored",
    "aten::nll_loss_forward": "the total weight is invented",
    "aten::scatter_reduce.two": "reduce='mean' gives wrong numbers",
    "aten::split.Tensor": "fails: it gives one sequence, not tensors",
    "aten::sum": "bool gives an invalid graph",
}
"""torchlib functions that are not used, and why."""

_lock = threading.RLock()
"""Held while a torchlib function runs: onnxscript keeps its current evaluator in a global."""


class OxsDispatcher(Dispatcher):
    """Users' converters, then this package's, then torchlib's."""

    def prefers(self, name: str) -> bool:
        """Tell whether an operator is better converted: torchlib counts when it stands alone."""
        return super().prefers(name) or (not self._own_converters and self.converts(name))

    def _fallback(self, name: str) -> Converter | None:
        return _torchlib_converter(name)


@functools.cache
def _torchlib_converter(name: str) -> Converter | None:
    if name in DISTRUSTED or name.startswith("_operator::getitem"):
        return None
    function = _torchlib_functions().get(name)
    if function is None:
        return None
    signature = getattr(function, "op_signature", None)
    parameters = None if signature is None else frozenset(signature.params_map)
    return Converter(name, functools.partial(_run, name, function), parameters=parameters)


@functools.cache
def _torchlib_functions() -> Mapping[str, Callable[..., Any]]:
    import onnxscript.function_libs.torch_lib.ops  # noqa: F401  (fills the registry)
    from onnxscript.function_libs.torch_lib import registration

    registry = registration.default_registry
    return {name: registry[name].overloads[0] for name in registry if registry[name].overloads}


def _run(name: str, function: Callable[..., Any], op: Recorder, *args: Any, **kwargs: Any) -> Any:
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
            raise Refused(f"torchlib's {name} failed: {type(e).__name__}: {e}") from e


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
        domain = op.opset.domain
        if domain:
            raise Refused(f"operator {domain}::{op.name} is not of the standard domain")
        inputs, attributes = list(args), dict(kwargs)
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
