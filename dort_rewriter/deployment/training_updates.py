"""How torch's optimizers change a parameter, as functions of tensors: nothing is written in place.

Each function computes what the loop over single tensors of ``torch.optim`` does, in its order.
Numbers that torch keeps in Python (powers of the step) are float64 here, rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from dort_rewriter.errors import ExportError

State = dict[str, torch.Tensor]
"""What an optimizer keeps of a parameter, by torch's own names, but for ``step``."""

Options = Mapping[str, Any]


class Given(NamedTuple):
    """What a new value of a parameter is computed from."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    state: State
    options: Options
    """Those of its group."""
    rate: torch.Tensor
    step: torch.Tensor
    """From 1."""


Update = Callable[[Given], tuple[torch.Tensor, State]]
"""Gives a parameter and its state after a step."""


def _decayed(p: torch.Tensor, grad: torch.Tensor, options: Options) -> torch.Tensor:
    """The gradient with what optimizers do first; AdamW decays the parameter itself."""
    if options.get("maximize"):
        grad = -grad
    if options["weight_decay"] != 0 and not options.get("decoupled_weight_decay"):
        grad = grad + options["weight_decay"] * p
    return grad


def _sgd(given: Given) -> tuple[torch.Tensor, State]:
    p, grad, state, options, rate, step = given
    grad = _decayed(p, grad, options)
    momentum, dampening = options["momentum"], options["dampening"]
    if momentum == 0:
        return p - rate * grad, {}
    buffer = momentum * state["momentum_buffer"] + (1 - dampening) * grad
    if dampening != 0:  # the first gradient is kept whole
        buffer = torch.where(step == 1, grad, buffer)
    direction = grad + momentum * buffer if options["nesterov"] else buffer
    return p - rate * direction, {"momentum_buffer": buffer}


def _adam(given: Given) -> tuple[torch.Tensor, State]:
    p, grad, state, options, rate, step = given
    grad = _decayed(p, grad, options)
    if options.get("decoupled_weight_decay") and options["weight_decay"] != 0:
        p = p * (1 - rate * options["weight_decay"])
    beta1, beta2 = options["betas"]
    first = state["exp_avg"] + (1 - beta1) * (grad - state["exp_avg"])
    second = beta2 * state["exp_avg_sq"] + (1 - beta2) * (grad * grad)
    kept = {"exp_avg": first, "exp_avg_sq": second}
    if options["amsgrad"]:
        second = torch.maximum(state["max_exp_avg_sq"], second)
        kept["max_exp_avg_sq"] = second
    count = step.to(torch.float64)
    size = (rate.to(torch.float64) / (1 - beta1**count)).to(p.dtype)
    root = torch.sqrt(1 - beta2**count).to(p.dtype)
    return p - size * (first / (second.sqrt() / root + options["eps"])), kept


def _rmsprop(given: Given) -> tuple[torch.Tensor, State]:
    p, grad, state, options, rate, _ = given
    grad = _decayed(p, grad, options)
    alpha = options["alpha"]
    square = alpha * state["square_avg"] + (1 - alpha) * (grad * grad)
    kept = {"square_avg": square}
    if options["centered"]:
        mean = state["grad_avg"] + (1 - alpha) * (grad - state["grad_avg"])
        kept["grad_avg"] = mean
        square = square - mean * mean
    root = square.sqrt() + options["eps"]
    if options["momentum"] == 0:
        return p - rate * (grad / root), kept
    buffer = options["momentum"] * state["momentum_buffer"] + grad / root
    return p - rate * buffer, {**kept, "momentum_buffer": buffer}


def _adagrad(given: Given) -> tuple[torch.Tensor, State]:
    p, grad, state, options, rate, step = given
    grad = _decayed(p, grad, options)
    total = state["sum"] + grad * grad
    count = step.to(torch.float64)
    size = (rate.to(torch.float64) / (1 + (count - 1) * options["lr_decay"])).to(p.dtype)
    return p - size * (grad / (total.sqrt() + options["eps"])), {"sum": total}


_UPDATES: Mapping[str, Update] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
    "RMSprop": _rmsprop,
    "Adagrad": _adagrad,
}


def update_of(optimizer: torch.optim.Optimizer) -> Update:
    """The function of an optimizer of torch. Raises :class:`ExportError` for another one."""
    kind = type(optimizer)
    found = _UPDATES.get(kind.__name__)
    if found is None or kind is not getattr(torch.optim, kind.__name__, None):
        raise ExportError(
            f"A training step is exported with one of torch.optim's {', '.join(_UPDATES)}, not "
            f"with {kind.__module__}.{kind.__qualname__}."
        )
    return found


def options_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group that decide how its parameters change."""
    flags = ("params", "lr", "foreach", "fused", "capturable", "differentiable")
    options = {k: v for k, v in group.items() if k not in flags}
    if isinstance(optimizer, torch.optim.AdamW):
        options["decoupled_weight_decay"] = True
    return options


_KEPT: Mapping[str, Callable[[Options], list[str]]] = {
    "SGD": lambda o: ["momentum_buffer"] * bool(o["momentum"]),
    "Adam": lambda o: ["exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * o["amsgrad"]],
    "RMSprop": lambda o: [
        *("square_avg", *["grad_avg"] * o["centered"]),
        *["momentum_buffer"] * bool(o["momentum"]),
    ],
    "Adagrad": lambda o: ["sum"],
}
"""What an optimizer keeps of a parameter."""


def state_of(
    optimizer: torch.optim.Optimizer, options: Options, p: torch.Tensor
) -> tuple[State, int | None]:
    """What an optimizer keeps of a parameter now, and how many steps it made.

    None if it does not keep that: SGD without momentum.
    """
    keys = _KEPT[type(optimizer).__name__.removesuffix("W")](options)
    known = optimizer.state.get(p, {})
    kept = {key: known.get(key) for key in keys}
    first = options.get("initial_accumulator_value", 0.0)
    start = functools.partial(torch.full_like, p, first, memory_format=torch.contiguous_format)
    state = {k: start() if v is None else v.detach().clone() for k, v in kept.items()}
    if "step" in known:
        return state, int(known["step"])
    if not keys:
        return state, None
    return state, int(any(v is not None for v in kept.values()))


def write_state(
    optimizer: torch.optim.Optimizer, p: torch.Tensor, state: State, step: int
) -> None:
    """Have an optimizer go on from a state of a parameter."""
    if step == 0 and not isinstance(optimizer, torch.optim.Adagrad):
        optimizer.state.pop(p, None)
        return
    kept: dict[str, Any] = {k: v.to(p.device).reshape(p.shape) for k, v in state.items()}
    if not isinstance(optimizer, torch.optim.SGD):
        kept["step"] = torch.tensor(float(step), dtype=torch.float32)
    if kept:
        optimizer.state[p] = kept
