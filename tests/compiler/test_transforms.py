"""Compiled functions under torch's transforms, and transforms in compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from tests.backends.ways import compile_strictly

# torch's own rules for forward mode are scripted when they are first needed.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin().sum() * x[0]


def chunked(x: torch.Tensor) -> Any:
    return x.chunk(2)[1] * 2, x.flip(0).exp()[1:]


def in_dual_level(f: Callable[..., Any], x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        results = f(forward_ad.make_dual(x, torch.arange(4.0)))
        leaves = torch.utils._pytree.tree_leaves(results)
        return [tuple(forward_ad.unpack_dual(r)) for r in leaves]


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones(4),)),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "vmap": lambda f, x: vmap(f)(torch.stack([x, x + 1])),
    "dual level": in_dual_level,
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("f", [function, chunked])
def test_of_a_compiled_function(f: Callable[..., Any], name: str) -> None:
    x = torch.randn(4)
    compiled, _ = compile_strictly(f, fullgraph=False)
    torch.testing.assert_close(TRANSFORMS[name](compiled, x), TRANSFORMS[name](f, x))


def test_gradient_of_a_compiled_function() -> None:
    x = torch.randn(4)
    compiled, _ = compile_strictly(function, fullgraph=False)
    torch.testing.assert_close(grad(compiled)(x), grad(function)(x))


@pytest.mark.parametrize("name", [*TRANSFORMS, "grad"])
def test_in_a_compiled_function(name: str) -> None:
    transforms = {**TRANSFORMS, "grad": lambda f, x: grad(f)(x)}

    def transformed(x: torch.Tensor) -> Any:
        return transforms[name](function, x)

    x = torch.randn(4)
    compiled, _ = compile_strictly(transformed, fullgraph=False, fallback=True)
    torch.testing.assert_close(compiled(x), transformed(x))


def test_tangents_of_some_calls_only() -> None:
    """One compiled graph serves calls with tangents and without."""
    x = torch.randn(4)
    compiled, backend = compile_strictly(chunked)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), chunked(x))
        torch.testing.assert_close(in_dual_level(compiled, x), in_dual_level(chunked, x))
    assert backend.execution_count == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # a dual is no leaf
def test_forward_mode_through_a_backward_graph_is_refused() -> None:
    compiled, _ = compile_strictly(function)
    # NotImplementedError before torch 2.15, where Dynamo refuses a dual itself.
    with pytest.raises(RuntimeError, match=r"jvp|dual tensor"):
        in_dual_level(compiled, torch.randn(4).requires_grad_())
