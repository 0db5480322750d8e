"""One training step, for examples, tests and dumps: the gradients are the result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dort_rewriter.errors import OptionError

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def train_loop(
    model: Any,
    *args: Any,
    loss_fn: LossFunction | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run one step, forward, backward and update; return the gradients of the parameters.

    The target is made of zeros, so that two runs of equal models give equal gradients.

    Args:
        model: a ``torch.nn.Module``, or what ``torch.compile`` made of one.
        args: its inputs.
        loss_fn: takes the first floating point tensor of the output and the target; None takes
            the ``loss`` of the output, an attribute or a key, if it has one, the mean of squares
            otherwise.
        optimizer: makes the update; None is plain gradient descent with a rate of 0.001.

    Raises:
        OptionError: the model has no parameter that needs a gradient, or none got one; the model
            is no module, or the optimizer none.

    """
    return _step(model, args, loss_fn, optimizer)


def train_loop_mixed_precision(
    model: Any,
    *args: Any,
    loss_fn: LossFunction | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run one step under ``torch.autocast``; return the gradients of the parameters.

    Like :func:`train_loop`, in ``dtype``: float16 by default on CUDA, bfloat16 elsewhere. The
    loss is scaled for float16; the gradients returned are not.

    Args:
        model: a ``torch.nn.Module``, or what ``torch.compile`` made of one.
        args: its inputs.
        loss_fn: as for :func:`train_loop`.
        optimizer: as for :func:`train_loop`.
        dtype: the type of autocast.

    Raises:
        OptionError: the model has no parameter that needs a gradient, or none got one; the model
            is no module, or the optimizer none.
    """
    if dtype is None:
        on_cuda = _trainable(model)[0].device.type == "cuda"
        dtype = torch.float16 if on_cuda else torch.bfloat16
    return _step(model, args, loss_fn, optimizer, dtype)


def _step(
    model: Any,
    args: tuple[Any, ...],
    loss_fn: LossFunction | None,
    optimizer: torch.optim.Optimizer | None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, ...]:
    """A step, under autocast where there is a type for it."""
    parameters = _trainable(model)
    device = parameters[0].device.type
    if optimizer is None:
        optimizer = torch.optim.SGD(parameters, lr=1e-3)
    elif not isinstance(optimizer, torch.optim.Optimizer):
        raise OptionError(
            "optimizer is one that was made, as torch.optim.SGD(model.parameters(), lr=1e-3), not "
            f"{optimizer!r}."
        )
    # A real loop skips its first steps until the scale fits; one step needs a scale that does.
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=dtype is torch.float16)
    model.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=dtype) if dtype else contextlib.nullcontext():
        loss = _loss(model(*args), loss_fn)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    gradients = tuple(p.grad for p in parameters if p.grad is not None)
    if not gradients:
        raise OptionError(
            "No parameter got a gradient: the loss does not depend on any of them. loss_fn gets "
            "the first floating point tensor that the model returns."
        )
    return gradients


def _trainable(model: Any) -> list[torch.nn.Parameter]:
    if not isinstance(model, torch.nn.Module):
        raise OptionError(
            f"The model is a torch.nn.Module, or what torch.compile made of one, not {model!r}."
        )
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise OptionError(
            f"{type(model).__name__} has no parameter that needs a gradient: there is nothing to "
            "train. Call requires_grad_() on its parameters, or run the model alone."
        )
    return parameters


def _loss(output: Any, loss_fn: LossFunction | None) -> torch.Tensor:
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss_fn is None and isinstance(own, torch.Tensor):
        return own
    prediction = next((t for t in _tensors(output) if t.is_floating_point()), None)
    if prediction is None:
        raise OptionError(
            f"The model returns no floating point tensor to make a loss of, but {type(output)!r}."
        )
    target = torch.zeros_like(prediction)
    loss = (loss_fn or torch.nn.functional.mse_loss)(prediction, target)
    if not loss.requires_grad:
        raise OptionError(
            "The loss does not depend on any parameter: the first floating point tensor that the "
            "model returns needs no gradient."
        )
    return loss


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
