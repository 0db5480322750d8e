"""Complex numbers: pairs of reals in a session, complex tensors for everybody else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dort_rewriter
from dort_rewriter import OrtBackend, OrtBackendOptions, to_onnx
from dort_rewriter.runtime.session import create_session

Tensor = torch.Tensor
Tensors = tuple[Tensor, ...]


def rotary(x: Tensor, frequencies: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * frequencies).flatten(3).type_as(x) * 2


def mixing(x: Tensor) -> Tensor:
    """Tokens and features, as FNet mixes them."""
    mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
    return torch.nn.functional.gelu(mixed * 0.5 + x).sin() + 1


def spectral(x: Tensor, weight: Tensor) -> Tensor:
    """A layer of a Fourier neural operator."""
    found = torch.fft.rfft(x)
    kept = torch.zeros(x.shape[0], weight.shape[1], found.shape[-1], dtype=torch.cfloat)
    kept[:, :, :4] = torch.einsum("bix,iox->box", found[:, :, :4], weight)
    return torch.nn.functional.gelu(torch.fft.irfft(kept, n=x.size(-1)))


def spectrum(x: Tensor) -> Tensors:
    found = torch.stft(x * 2, 16, 4, window=torch.hann_window(16), return_complex=True)
    return found.abs().log1p(), found * 2j


def seen_otherwise(x: Tensor, y: Tensor) -> Tensors:
    z = torch.complex(x.sin(), y.cos())
    return z, z.conj(), z * 2j, z.real, z.imag, z.t(), (z + 1).transpose(0, 1), z[1:, ::2]


def solved(x: Tensor, y: Tensor) -> Tensors:
    """What has no converter for complex numbers."""
    z = torch.complex(x.sin() + 2 * torch.eye(3), y)
    return torch.linalg.inv(z) @ z.exp(), torch.linalg.eigvals(z).abs().sort()[0] + 1


def drawn(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(shape).requires_grad_(grad)


def weights(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.cfloat).requires_grad_()


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Tensors]]] = {
    "rotary embedding": (
        rotary,
        lambda: (drawn(2, 5, 3, 8), torch.polar(torch.ones(5, 1, 4), torch.rand(5, 1, 4))),
    ),
    "FNet": (mixing, lambda: (drawn(2, 6, 8),)),
    "FNO": (spectral, lambda: (drawn(2, 3, 16), weights(3, 5, 4))),
    "STFT": (spectrum, lambda: (drawn(2, 64, grad=False),)),
    "views": (seen_otherwise, lambda: (drawn(3, 4), drawn(3, 4))),
    "linear algebra": (solved, lambda: (drawn(3, 3, grad=False), drawn(3, 3, grad=False))),
    "conjugated argument": (lambda x: x * 2 + x[0], lambda: (weights(3, 4).detach().conj(),)),
    "turned argument": (lambda x: (x * 2j).sum(0) + 1, lambda: (weights(3, 4).detach().t(),)),
    "nothing": (lambda x: (x * 2).sum(0) + 1j, lambda: (weights(0, 4).detach(),)),
    "one number": (lambda x: x * (1 + 2j) - 3, lambda: (weights().detach(),)),
    "converted": (
        lambda x: (
            torch.ops.prims.convert_element_type(x * 2j, torch.complex64),
            torch.ops.prims.convert_element_type((x.real * 2), torch.complex64) * 1j,
        ),
        lambda: (weights(3, 4).detach(),),
    ),
    "double": (
        lambda x, y: (x * y).abs() + (x + y).angle() + torch.view_as_real(x.sgn() * 2).sum(-1),
        lambda: (weights(3).detach().to(torch.cdouble), drawn(2, 3, grad=False).double()),
    ),
}


def copies(arguments: Tensors) -> Tensors:
    return tuple(a.detach().clone().requires_grad_(a.requires_grad) for a in arguments)


def listed(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


def gradients(results: list[Tensor], arguments: Tensors) -> list[Tensor]:
    loss = sum((r.abs() ** 2).sum() for r in results if r.requires_grad)
    assert isinstance(loss, Tensor)
    loss.backward()
    return [a.grad for a in arguments if a.grad is not None]


@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_in_sessions(
    name: str, dynamic: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    function, make = PROGRAMS[name]
    torch.manual_seed(0)
    backend = OrtBackend()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        for _ in range(2):
            arguments = make()
            ours = copies(arguments)
            if any(a.is_conj() for a in arguments):
                ours = tuple(a.detach() for a in arguments)
            expected, got = listed(function(*arguments)), listed(compiled(*ours))
            for e, g in zip(expected, got, strict=True):
                assert (g.dtype, g.stride(), g.is_conj()) == (e.dtype, e.stride(), e.is_conj())
                torch.testing.assert_close(g, e)
            if any(a.requires_grad for a in arguments):
                wanted = gradients(expected, arguments)
                torch.testing.assert_close(gradients(got, ours), wanted)
    assert "in torch as a whole" not in caplog.text
    assert "These operators run in torch" not in caplog.text
    assert "from now on" not in caplog.text
    assert backend.execution_count >= 2


@pytest.mark.parametrize(
    "options", [{"freeze": True}, {"preallocate_output": True}, {"cache_graphs": True}]
)
@pytest.mark.parametrize("name", ["FNO", "views", "turned argument"])
def test_options(name: str, options: dict[str, Any]) -> None:
    function, make = PROGRAMS[name]
    compiled = torch.compile(function, backend=OrtBackend(OrtBackendOptions(**options)))
    arguments = make()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(*arguments), function(*arguments))


@pytest.mark.parametrize("order", [float("inf"), float("-inf")])
def test_gradient_of_largest_norms_finds_the_largest(order: float) -> None:
    compiled = torch.compile(
        lambda x: torch.linalg.vector_norm(x * 1, order) * 2, backend="onnxrt", dynamic=True
    )
    for size in range(2, 12):
        x = weights(size, 3)
        again = x.detach().clone().requires_grad_()
        expected = torch.linalg.vector_norm(again * 1, order) * 2
        expected.backward()
        found = compiled(x)
        found.backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(x.grad, again.grad)


def test_calls_are_verified() -> None:
    function, make = PROGRAMS["FNO"]
    compiled = torch.compile(function, backend=OrtBackend(OrtBackendOptions(verify=True)))
    arguments = make()
    got = listed(compiled(*arguments))
    assert len(gradients(got, arguments)) == 2


def test_another_type_is_another_graph() -> None:
    compiled = torch.compile(lambda x: x * 2 + 1, backend=OrtBackend())
    for x in (torch.randn(3, 2), torch.randn(3, dtype=torch.cfloat), torch.randn(3, 2)):
        torch.testing.assert_close(compiled(x), x * 2 + 1)


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5, 4, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return spectral(x, self.weight)


class Turned(nn.Module):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.view_as_complex(x) * z.conj() + 1


def test_saved_and_loaded(tmp_path: Path) -> None:
    """Complex weights, arguments and results."""
    cases = [
        (Spectral(), (torch.randn(2, 3, 16),)),
        (Turned(), (torch.randn(3, 2), torch.randn(3, dtype=torch.cfloat))),
    ]
    with torch.no_grad():
        for i, (module, arguments) in enumerate(cases):
            folder = tmp_path / str(i)
            compiled = torch.compile(module.eval(), backend="onnxrt", fullgraph=True)
            dort_rewriter.save(compiled, folder, *arguments)
            torch.testing.assert_close(dort_rewriter.load(folder)(*arguments), module(*arguments))


TRANSFORMS: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    f"{name} {norm}": (
        lambda x, name=name, norm=norm: getattr(torch.fft, name)(x, norm=norm),
        torch.randn(3, 4, 6, dtype=torch.float if name.startswith("r") else torch.cfloat),
    )
    for name in ("fft", "ifft2", "fftn", "rfft", "rfft2", "irfft", "irfftn", "hfft")
    for norm in ("backward", "ortho", "forward")
}
TRANSFORMS["odd"] = (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=7), torch.randn(2, 7))
TRANSFORMS["two"] = (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=2), torch.randn(2, 2))
TRANSFORMS["spectrum"] = (lambda x: spectrum(x)[1], torch.randn(2, 64))


class Given(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_in_files(name: str, opset: int) -> None:
    """Standard ONNX; complex inputs and outputs have a last dimension of two."""
    function, x = TRANSFORMS[name]
    model = to_onnx(Given(function), (x,), target_opset=opset)
    session = create_session(model, providers=[("CPUExecutionProvider", {})])
    (given,) = session.ort.get_inputs()
    fed = torch.view_as_real(x) if x.is_complex() else x
    (got,) = session.ort.run(None, {given.name: fed.numpy()})
    expected = function(x)
    expected = torch.view_as_real(expected.resolve_conj()) if expected.is_complex() else expected
    scale = float(expected.abs().max())
    torch.testing.assert_close(torch.from_numpy(got), expected, atol=1e-5 * scale, rtol=1e-4)
