"""One graph of a compiled model, made again by the same steps, and watched at its first run.

Dynamo reads the call, AOTAutograd and the backend make a model of it: what comes out is what a
call of the compiled model runs. The way from the arguments of the call to those of the graph, and
from its results to the result of the call, is seen from the run: tensors are told by identity.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dort_rewriter.deployment.capture_backend import Captured, Watcher
from dort_rewriter.deployment.capture_steps import StepWatcher
from dort_rewriter.deployment.compiled import Compiled
from dort_rewriter.errors import CaptureError, DortError


def capture(
    found: Compiled, args: Sequence[Any], kwargs: Mapping[str, Any], *, training: bool
) -> Captured:
    """Make the graph of a call, and run it once on these arguments, which it leaves as they are.

    Of a training step it makes the graph of the gradients as well, and runs it.

    Raises :class:`CaptureError` when there is no such graph that ONNX Runtime runs as a whole.
    """
    tensors = [t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, torch.Tensor)]
    if found.module is not None:
        tensors += [*found.module.parameters(), *found.module.buffers()]
    watcher = (StepWatcher if training else Watcher)(found.options, tensors)
    # Each with code and globals of its own: nothing is kept with those of the caller.
    names: dict[str, Any] = {
        "target": found.target,
        "__builtins__": builtins,
        "__name__": __name__,
    }
    frame = FunctionType(_frame.__code__.replace(), names, "saved_call")
    compiled = torch.compile(frame, backend=watcher, fullgraph=True, dynamic=found.dynamic)
    fixed = torch._dynamo.config.patch(automatic_dynamic_shapes=False)
    # Sizes that are equal in this call by chance (a batch of 4, rows of 4) are not one size.
    symbols: Any = torch.fx.experimental._config
    apart = symbols.patch(use_duck_shape=False)
    with torch.set_grad_enabled(training), fixed, apart:
        try:
            value = compiled(*args, **kwargs)
            watcher.finish()
        except DortError:
            raise
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise _cause(error) from None
        except torch._dynamo.exc.TorchDynamoException as error:
            raise CaptureError(
                f"The call is not one graph, and only one can be saved: {_brief(error)}"
            ) from error
        finally:
            watcher.restore()
            # What Dynamo keeps of the call is found here, and would never go. It takes the names.
            names.update(dict.fromkeys(names))
    captured, watcher.captured = watcher.captured, None
    if captured is None:
        raise CaptureError("The call computes nothing with tensors: there is no graph to save.")
    captured.value = value
    return captured


def _frame(*args: Any, **kwargs: Any) -> Any:
    return target(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821  # a global of each


def _cause(error: BaseException) -> BaseException:
    """The error of ours in an error of Dynamo, or the error as it is."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, DortError):
            return found.with_traceback(None)
        found = getattr(found, "inner_exception", None) or found.__cause__
    return error


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join([line for line in lines if line][:6])
