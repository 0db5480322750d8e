"""What a compiled module or function is made of: what was compiled, and how."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dort_rewriter.backends.arguments import with_mode
from dort_rewriter.backends.instances import as_own
from dort_rewriter.backends.layers import compiled_layer
from dort_rewriter.errors import CaptureError
from dort_rewriter.options import OrtBackendOptions, from_mapping

WHAT_IS_SKIPPED = (
    "Dynamo skips recurrent modules (nn.LSTM, nn.GRU, nn.RNN), functions of torch itself, and, "
    "before torch 2.15, torch's own modules that are compiled in place (nn.Sequential(...)."
    "compile(): torch.compile(model) compiles them). TORCH_LOGS=+dynamo says why."
)
"""For messages about a model of which nothing is compiled."""

_OUTER = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable")
"""Where the layers of Dynamo around a backend keep what they are around; older torch: the last."""


@dataclass(frozen=True)
class Compiled:
    """A call of ``torch.compile(..., backend="onnxrt")``."""

    target: Callable[..., Any]
    """The module, function or method that was compiled."""
    options: OrtBackendOptions
    dynamic: bool | None
    backend: Any = None
    """The object that was given as the backend, None for the name of one."""

    @property
    def module(self) -> torch.nn.Module | None:
        """The module whose tensors the target uses by name, None for a function."""
        if isinstance(self.target, torch.nn.Module):
            return self.target
        owner = getattr(self.target, "__self__", None)
        return owner if isinstance(owner, torch.nn.Module) else None


def take_apart(compiled: Any) -> Compiled:
    """Find out what was compiled and how; :class:`CaptureError` when it was not, or by another."""
    target, context = _layers(compiled)
    backend: Any = getattr(context, "callback", None)
    while (inner := _inside(backend)) is not None:
        backend = inner
    settings: Mapping[str, Any] = getattr(backend, "kwargs", {})
    function: Any = getattr(backend, "compiler_fn", backend)
    name = getattr(backend, "compiler_name", "")
    if hasattr(function, "_options") and hasattr(function, "_ort_acclerated_call"):
        options, given = as_own(function._options), function
    elif name in ("onnxrt", "torch_compile_backend"):
        options, given = from_mapping(OrtBackendOptions, settings.get("options")), None
    else:
        raise CaptureError(
            f'It was compiled by another backend ({name or function!r}): backend="onnxrt", or an '
            "OrtBackend, makes what can be saved and loaded."
        )
    chosen = with_mode(options, settings.get("mode"))
    return Compiled(target, chosen, getattr(context, "_dynamic", None), given)


def signature_of(target: Callable[..., Any]) -> inspect.Signature:
    """How a module, a function or a method is called; of a function in C nothing is known."""
    try:
        return inspect.signature(target.forward if isinstance(target, torch.nn.Module) else target)
    except ValueError:
        return inspect.signature(lambda *args, **kwargs: None)


def as_given(model: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.compile`` was given, if a model was compiled, by any backend; else the model.

    Of a module that was compiled in place it is a method of torch: Dynamo begins inside of that,
    so that it compiles less than it does of the module.
    """
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        given: Callable[..., Any] = model._orig_mod
        return given
    in_place = model._compiled_call_impl if isinstance(model, torch.nn.Module) else None
    if compiled_layer(model) is not None:
        return model
    compiled = model if in_place is None else in_place
    return getattr(compiled, "_torchdynamo_orig_callable", compiled)


def _layers(compiled: Any) -> tuple[Callable[..., Any], Any]:
    """What was compiled, and the context in which Dynamo runs it."""
    if isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule):
        return compiled._orig_mod, compiled.dynamo_ctx
    if (layer := compiled_layer(compiled)) is not None:
        return compiled, _context_of(layer)  # compile_layers(), for all of its layers
    if isinstance(compiled, torch.nn.Module) and compiled._compiled_call_impl is not None:
        return compiled, _context_of(compiled._compiled_call_impl)  # module.compile()
    context = _context_of(compiled)
    target = getattr(compiled, "_torchdynamo_orig_callable", None)
    if context is None or target is None:
        raise CaptureError(
            f"{type(compiled).__name__} is not compiled: give what "
            'torch.compile(model, backend="onnxrt") returned.'
        )
    return target, context


def _context_of(function: Any) -> Any:
    """The context that the closure of a compiled function holds."""
    for cell in getattr(function, "__closure__", None) or ():
        content = cell.cell_contents
        if hasattr(content, "callback") and hasattr(content, "_dynamic"):
            return content
    return None


def _inside(layer: Any) -> Any:
    return next((getattr(layer, name) for name in _OUTER if hasattr(layer, name)), None)
