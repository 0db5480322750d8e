"""Factorizations without torch: each decomposition gives what torch's kernel gives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from dort_rewriter import UnsupportedOpError, to_onnx
from dort_rewriter.export.linear_algebra import LARGEST, linear_algebra_decompositions
from dort_rewriter.export.pairwise import pairwise_decompositions

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")

BATCHES = ((), (3,), (2, 0))


def same(op: Any, *args: Any, **named: Any) -> None:
    """Both results, or all of several, are alike."""
    table = {**linear_algebra_decompositions(), **pairwise_decompositions()}
    torch.testing.assert_close(table[op](*args, **named), op(*args, **named), rtol=1e-8, atol=1e-8)


def square(n: int, batch: Sequence[int]) -> torch.Tensor:
    torch.manual_seed(n)
    return torch.randn(*batch, n, n, dtype=torch.float64)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
def test_square_matrices(n: int, batch: tuple[int, ...]) -> None:
    a = square(n, batch)
    for lies in (a, a.mT.contiguous().mT):  # torch factors the one or its transpose
        same(aten._linalg_det.default, lies)
        same(aten._linalg_slogdet.default, lies)
        same(aten.linalg_inv_ex.default, lies)
        same(aten._linalg_solve_ex.default, lies, a.mT.contiguous())
        same(aten._linalg_solve_ex.default, lies, a.sum(-1))
    same(aten.linalg_matrix_exp.default, a * 3)
    factors, pivots, _ = torch.linalg.lu_factor_ex(a)
    for left, adjoint in itertools.product((True, False), repeat=2):
        b = square(n, batch)[..., :2] if left else square(n, batch)[..., :2, :]
        same(aten.linalg_lu_solve.default, factors, pivots, b, left=left, adjoint=adjoint)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("upper", [True, False])
def test_triangles(n: int, batch: tuple[int, ...], upper: bool) -> None:
    a = square(n, batch)
    positive = a @ a.mT + n * torch.eye(n, dtype=a.dtype)
    # The other triangle is not read.
    half = positive.triu() if upper else positive.tril()
    same(aten.linalg_cholesky_ex.default, half, upper=upper)
    if hasattr(aten, "cholesky"):  # until 2.14
        same(aten.cholesky.default, half, upper=upper)
    factor = torch.linalg.cholesky(positive, upper=upper)
    same(aten.cholesky_inverse.default, factor, upper)
    same(aten.cholesky_solve.default, a, factor, upper)
    for flag in (True, False):
        same(aten.triangular_solve.default, a, factor, upper, flag, False)
        same(aten.linalg_solve_triangular.default, factor, a, upper=upper, left=flag)
    same(aten.linalg_solve_triangular.default, factor, a, upper=upper, unitriangular=True)


def test_what_is_not_positive_says_where() -> None:
    a = torch.eye(4)
    a[2, 2] = -1
    assert linear_algebra_decompositions()[aten.linalg_cholesky_ex.default](a)[1] == 3
    a[2, 2] = 0
    found = linear_algebra_decompositions()[aten.linalg_inv_ex.default](a)
    assert found[1] == 3
    same(aten._linalg_det.default, a.double())


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("m", "n"), [(3, 5), (5, 3), (1, 4), (4, 1), (4, 4), (0, 3), (3, 0)])
def test_any_shape(m: int, n: int, batch: tuple[int, ...]) -> None:
    torch.manual_seed(m + n)
    a = torch.randn(*batch, m, n, dtype=torch.float64)
    for op in (aten.linalg_lu_factor_ex.default, aten.linalg_lu.default, aten.geqrf.default):
        same(op, a)
    same(aten.lu_unpack.default, *torch.linalg.lu_factor_ex(a)[:2])
    for mode in ("reduced", "complete", "r"):
        same(aten.linalg_qr.default, a, mode)
    if m >= n:
        h, tau = torch.geqrf(a)
        same(aten.linalg_householder_product.default, h, tau)
        c = torch.randn(*batch, m, 2, dtype=torch.float64)
        for left, transpose in itertools.product((True, False), repeat=2):
            same(aten.ormqr.default, h, tau, c if left else c.mT, left, transpose)
    if min(m, n):
        same(aten.linalg_pinv.atol_rtol_tensor, a, atol=None, rtol=None)


@pytest.mark.parametrize(("m", "n"), [(3, 5), (5, 3), (1, 4), (6, 6), (16, 15)])
@pytest.mark.parametrize("full", [True, False])
def test_singular_values(m: int, n: int, full: bool) -> None:
    torch.manual_seed(n)
    a = torch.randn(2, m, n, dtype=torch.float64)
    a[1] = a[1, :, :1] * a[1, :1]  # of rank one
    got = linear_algebra_decompositions()[aten._linalg_svd.default](a, full)
    want = torch.linalg.svd(a, full)
    torch.testing.assert_close(got[1], want[1], rtol=1e-8, atol=1e-8)
    for vectors, theirs in ((got[0], want[0]), (got[2].mT, want[2].mT)):
        assert vectors.shape == theirs.shape
        unit = torch.eye(vectors.shape[-1], dtype=a.dtype).expand(2, -1, -1)
        torch.testing.assert_close(vectors.mT @ vectors, unit, rtol=1e-8, atol=1e-8)
    k = min(m, n)
    torch.testing.assert_close((got[0][..., :k] * got[1].unsqueeze(-2)) @ got[2][:, :k], a)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("half", ["L", "U"])
def test_eigenvalues(n: int, half: str) -> None:
    a = square(n, (2,))
    a = a.tril() if half == "L" else a.triu()
    values, vectors = linear_algebra_decompositions()[aten._linalg_eigh.default](a, half)
    whole = a + (a.tril(-1) if half == "L" else a.triu(1)).mT
    torch.testing.assert_close(values, torch.linalg.eigvalsh(whole))
    torch.testing.assert_close(vectors * values.unsqueeze(-2) @ vectors.mT, whole)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances_of_pairs(p: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, dtype=torch.float64)
    x[1], x[2, 0] = x[0], x[3, 0]  # no distance at all, and none along an axis
    same(aten._pdist_forward.default, x, p)
    far = torch.nn.functional.pdist(x, p)
    same(aten._pdist_backward.default, torch.randn(10, dtype=x.dtype), x, p, far)


@pytest.mark.parametrize("rows", [(), (4,)])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_gradients_of_margins(rows: tuple[int, ...], reduction: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(*rows, 5, dtype=torch.float64)
    target = torch.randint(5, rows)
    grad = torch.randn(rows if reduction == 0 else (), dtype=x.dtype)
    weight = torch.rand(5, dtype=x.dtype)
    for p, chosen in ((1, None), (2, weight)):
        same(aten.multi_margin_loss_backward.default, grad, x, target, p, 0.7, chosen, reduction)
    labels = torch.tensor([3, 0, -1, 1, 2]).expand(*rows, 5).contiguous()
    is_target = aten.multilabel_margin_loss_forward(x, labels, reduction)[1]
    same(aten.multilabel_margin_loss_backward.default, grad, x, labels, reduction, is_target)


class Cell(torch.nn.Module):
    """What a force field computes of the cell of a crystal."""

    def forward(self, cell: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cell = cell.detach().requires_grad_(True)
        scaled = x @ torch.linalg.inv(cell)
        energy = (scaled - scaled.round()).square().sum() + torch.linalg.det(cell).log()
        (stress,) = torch.autograd.grad(energy, cell)
        return torch.linalg.solve(cell.mT, x.mT), stress, torch.linalg.eigvalsh(cell @ cell.mT)


def test_a_file_of_standard_operators() -> None:
    torch.manual_seed(0)
    cell, x = torch.eye(3) * 5 + torch.rand(3, 3), torch.randn(4, 3)
    proto = to_onnx(Cell(), (cell, x))
    assert {o.domain for o in proto.opset_import} == {""}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    fed = {i.name: v.numpy() for i, v in zip(proto.graph.input, (cell, x), strict=True)}
    for got, want in zip(session.run(None, fed), Cell()(cell, x), strict=True):
        np.testing.assert_allclose(got, want.detach(), rtol=1e-4, atol=1e-5)


class Inverse(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x)


@pytest.mark.parametrize("kind", ["large", "complex"])
def test_what_is_not_unrolled_is_refused(kind: str) -> None:
    n = LARGEST + 1 if kind == "large" else 3
    x = torch.eye(n, dtype=torch.complex64 if kind == "complex" else torch.float32)
    with pytest.raises(UnsupportedOpError, match="linalg_inv_ex"):
        to_onnx(Inverse(), (x,))
