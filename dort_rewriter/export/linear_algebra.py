"""Factorizations, inverses and solutions as elementary operators, for models without torch.

ONNX has ``Det``, and nothing else of it. A matrix of a fixed size is factored here as LAPACK does
it, unrolled: by columns, with partial pivoting or Householder reflections; eigenvalues and
singular values by Jacobi rotations, of which a file holds a fixed number. So a file grows with
the size of its matrices, and :data:`LARGEST`, :data:`LARGEST_ROTATED` bound it: others stay as
they are, and are refused.

Where torch has an error for a matrix (singular, not positive definite) a file gives what the
arithmetic does: infinities and NaN. Vectors of eigenvalues and singular values are those of
torch up to their sign.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.signature import find_operator

LARGEST = 64
"""Rows and columns of a matrix that is factored."""

LARGEST_ROTATED = 16
"""Columns of a matrix whose eigenvalues or singular values are computed."""

SWEEPS = {torch.float32: 7, torch.float64: 9}
"""How often each pair of columns is rotated: errors are squared by each of the last ones."""

aten = torch.ops.aten


def linear_algebra_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition of every operator of this module that this torch has."""
    solve_ex = functools.partial(_solve_ex, may_transpose=_solves_by_transpose())
    table = {
        "_linalg_det": _where_it_fits(_det),
        "_linalg_eigh": _where_it_fits(_eigh, LARGEST_ROTATED, smallest=1),
        "_linalg_slogdet": _where_it_fits(_slogdet),
        "_linalg_solve_ex": _where_it_fits(solve_ex),
        "_linalg_svd": _where_it_fits(_svd, LARGEST_ROTATED),
        "cholesky": _where_it_fits(lambda a, upper=False: _cholesky_ex(a, upper=upper)[0]),
        "cholesky_inverse": _where_it_fits(
            lambda factor, upper=False: _cholesky_solve(_identity(factor), factor, upper)
        ),
        "cholesky_solve": _where_it_fits(_cholesky_solve, matrix=1),
        "geqrf": _where_it_fits(_geqrf),
        "linalg_cholesky_ex": _where_it_fits(_cholesky_ex),
        "linalg_householder_product": _where_it_fits(_householder_product),
        "linalg_inv_ex": _where_it_fits(_inv_ex),
        "linalg_lu": _where_it_fits(_lu),
        "linalg_lu_factor_ex": _where_it_fits(_lu_factor_ex),
        "linalg_lu_solve": _where_it_fits(_lu_solve),
        "linalg_matrix_exp": _where_it_fits(_matrix_exp),
        "linalg_pinv.atol_rtol_tensor": _where_it_fits(_pinv, LARGEST_ROTATED, smallest=1),
        "linalg_qr": _where_it_fits(_qr),
        "linalg_solve_triangular": _where_it_fits(_solve_triangular),
        "lu_unpack": _where_it_fits(_lu_unpack),
        "ormqr": _where_it_fits(_ormqr),
        "triangular_solve": _where_it_fits(_triangular_solve, matrix=1),
    }
    found = {find_operator(f"aten::{name}"): function for name, function in table.items()}
    found.pop(None, None)  # torch 2.15 has no cholesky
    return found


@functools.cache
def _solves_by_transpose() -> bool:
    """Whether torch factors the transpose of a row-major matrix (2.8), or the matrix (2.13)."""
    with _disable_current_modes():
        matrix = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        return not torch.equal(aten._linalg_solve_ex(matrix, matrix)[1], matrix)


def _where_it_fits(
    decompose: Callable[..., Any], largest: int = LARGEST, *, smallest: int = 0, matrix: int = 0
) -> Callable[..., Any]:
    """Leave alone matrices that are complex, of a size that varies, or too large to be unrolled.

    ``matrix`` is the place of the matrix among the arguments.
    """

    def decomposed(*args: Any, **named: Any) -> Any:
        sizes = args[matrix].shape[-2:]
        if not all(isinstance(n, int) for n in sizes) or args[matrix].dtype not in SWEEPS:
            return NotImplemented
        if not smallest <= min(sizes) <= largest or max(sizes) > LARGEST:
            return NotImplemented
        return decompose(*args, **named)

    return decomposed


# --- triangles ---------------------------------------------------------------------------------


def _solve_lower(a: Tensor, b: Tensor, unit: bool = False) -> Tensor:
    """The solution of ``a @ x = b``, of which only the lower triangle is read: by halves."""
    n = a.shape[-1]
    if n <= 1:
        return b if unit or not n else b / a
    half = n // 2
    first = _solve_lower(a[..., :half, :half], b[..., :half, :], unit)
    rest = b[..., half:, :] - a[..., half:, :half] @ first
    second = _solve_lower(a[..., half:, half:], rest, unit)
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    parts = [t.expand(*batch, *t.shape[-2:]) for t in (first, second)]
    return torch.cat(parts, -2)


def _solve_upper(a: Tensor, b: Tensor, unit: bool = False) -> Tensor:
    return _solve_lower(a.flip(-1, -2), b.flip(-2), unit).flip(-2)


def _solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    return (_solve_upper if upper else _solve_lower)(a, b, unitriangular)


def _triangular_solve(
    b: Tensor,
    a: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = a.expand(*batch, *a.shape[-2:])
    b = b.expand(*batch, *b.shape[-2:])
    given, is_upper = (a.mT, not upper) if transpose else (a, upper)
    found = _solve_triangular(given, b, upper=is_upper, unitriangular=unitriangular)
    return found, a.clone()


# --- Cholesky ----------------------------------------------------------------------------------


def _factor_positive(a: Tensor) -> Tensor:
    """The upper factor, under which zeros stand, of the lower triangle: by halves."""
    n = a.shape[-1]
    if n <= 1:
        return a.sqrt()
    half = n // 2
    first = _factor_positive(a[..., :half, :half])
    right = _solve_lower(first.mT, a[..., half:, :half].mT)
    second = _factor_positive(a[..., half:, half:] - right.mT @ right)
    under = torch.zeros_like(a[..., half:, :half])
    return torch.cat([torch.cat([first, right], -1), torch.cat([under, second], -1)], -2)


def _cholesky_ex(
    a: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    factor = _factor_positive(a.mT if upper else a)
    info = _first(~(factor.diagonal(0, -2, -1) > 0))
    return factor if upper else factor.mT, info


def _first(failed: Tensor) -> Tensor:
    """The place of the first failure, counted from one; zero without any."""
    if not failed.shape[-1]:
        return failed.new_zeros(failed.shape[:-1], dtype=torch.int32)
    place = failed.to(torch.int32).argmax(-1) + 1
    return torch.where(failed.any(-1), place, 0).to(torch.int32)


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    return _solve_upper(lower.mT, _solve_lower(lower, b))


def _identity(a: Tensor, rows: int | None = None) -> Tensor:
    """A unit matrix with the columns, type and batch of another."""
    m = a.shape[-1] if rows is None else rows
    return torch.eye(m, a.shape[-1], dtype=a.dtype).expand(*a.shape[:-2], m, a.shape[-1])


# --- LU ----------------------------------------------------------------------------------------


def _rows(a: Tensor, order: Tensor) -> Tensor:
    """The rows of a matrix in another order."""
    return a.gather(-2, order.unsqueeze(-1).expand(*order.shape, a.shape[-1]))


def _swapped(count: int, place: Tensor) -> Tensor:
    """The order that exchanges the first of ``count`` rows with the one of a place."""
    numbers = torch.arange(count)
    place = place.unsqueeze(-1)
    order = torch.where(numbers == place, 0, numbers)
    return torch.where(numbers == 0, place, order)


def _factor(a: Tensor, pivot: bool = True) -> tuple[Tensor, list[Tensor], Tensor]:
    """Both factors in one matrix, the row that each column took, and the order of the rows."""
    m, n = a.shape[-2:]
    if not m or not n:
        return a, [], torch.arange(m).expand(*a.shape[:-2], m)
    if pivot:
        place = a[..., 0].abs().argmax(-1)
    else:
        place = torch.zeros(a.shape[:-2], dtype=torch.int64)
    order = _swapped(m, place)
    a = _rows(a, order) if pivot else a
    top = a[..., :1, :]
    if m == 1:
        return top, [place], order
    corner = top[..., :1]
    below = a[..., 1:, :1] / torch.where(corner == 0, 1.0, corner)
    if n == 1:
        return torch.cat([top, below], -2), [place], order
    rest, places, inner = _factor(a[..., 1:, 1:] - below @ top[..., 1:], pivot)
    if pivot:
        below = _rows(below, inner)
        order = order.gather(-1, torch.cat([torch.zeros_like(inner[..., :1]), inner + 1], -1))
    whole = torch.cat([top, torch.cat([below, rest], -1)], -2)
    return whole, [place, *(p + 1 for p in places)], order


def _lu_factor_ex(
    a: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    factors, places, _ = _factor(a, pivot)
    info = _first(factors.diagonal(0, -2, -1) == 0)
    return factors, _pivots(places, a), info


def _pivots(places: Sequence[Tensor], like: Tensor) -> Tensor:
    if not places:
        return like.new_zeros((*like.shape[:-2], 0), dtype=torch.int32)
    return (torch.stack(list(places), -1) + 1).to(torch.int32)


def _as_torch_factors(a: Tensor) -> tuple[Tensor, bool]:
    """The matrix that torch's kernels factor for one, and whether it is the transpose.

    What a gradient does with the factors was traced for the one or the other.
    """
    is_transposed = a.is_contiguous()
    return (a.mT if is_transposed else a), is_transposed


def _triangles(factors: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of one matrix apart, the lower one with ones on its diagonal."""
    m, n = factors.shape[-2:]
    k = min(m, n)
    lower = factors[..., :, :k].tril(-1) + torch.eye(m, k, dtype=factors.dtype)
    return lower, factors[..., :k, :].triu()


def _lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    factors, _, order = _factor(a, pivot)
    permutation = _permutation(order, a.dtype) if pivot else a.new_empty((0,))
    return permutation, *_triangles(factors)


def _permutation(order: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix by which rows in an order become the rows as they were."""
    return (order.unsqueeze(-2) == torch.arange(order.shape[-1]).unsqueeze(-1)).to(dtype)


def _order(pivots: Tensor, rows: int) -> Tensor:
    """The order of the rows that exchanges, one after the other, bring about."""
    numbers = torch.arange(rows)
    order = numbers.expand(*pivots.shape[:-1], rows)
    for k in range(pivots.shape[-1]):
        place = pivots[..., k : k + 1].to(torch.int64) - 1
        taken = order.gather(-1, place)
        own = order[..., k : k + 1]
        order = torch.where(numbers == place, own, order)
        order = torch.where(numbers == k, taken, order)
    return order


def _lu_unpack(
    factors: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    empty = factors.new_empty((0,))
    lower, upper = _triangles(factors) if unpack_data else (empty, empty)
    if not unpack_pivots:
        return empty, lower, upper
    return _permutation(_order(pivots, factors.shape[-2]), factors.dtype), lower, upper


def _lu_solve(
    factors: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    permutation = _permutation(_order(pivots, factors.shape[-2]), factors.dtype)
    return _solve_factored(factors, permutation, b, left=left, adjoint=adjoint)


def _solve_factored(
    factors: Tensor, permutation: Tensor, b: Tensor, *, left: bool, adjoint: bool
) -> Tensor:
    if not left:
        swapped = _solve_factored(factors, permutation, b.mT, left=True, adjoint=not adjoint)
        return swapped.mT
    if adjoint:
        found = _solve_lower(factors.mT, b)
        return permutation @ _solve_upper(factors.mT, found, unit=True)
    return _solve_upper(factors, _solve_lower(factors, permutation.mT @ b, unit=True))


def _solve_ex(
    a: Tensor,
    b: Tensor,
    *,
    left: bool = True,
    check_errors: bool = False,
    may_transpose: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    given, is_transposed = _as_torch_factors(a) if may_transpose else (a, False)
    factors, places, order = _factor(given)
    permutation = _permutation(order, a.dtype)
    found = _solve_factored(factors, permutation, right, left=left, adjoint=is_transposed)
    info = _first(factors.diagonal(0, -2, -1) == 0)
    return found.squeeze(-1) if is_vector else found, factors, _pivots(places, a), info


def _inv_ex(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    factors, _, order = _factor(a)
    permutation = _permutation(order, a.dtype)
    found = _solve_factored(factors, permutation, _identity(a), left=True, adjoint=False)
    return found, _first(factors.diagonal(0, -2, -1) == 0)


def _sign(places: Sequence[Tensor], like: Tensor) -> Tensor:
    """The sign of a permutation, of which each exchange is one of two rows or none."""
    if not places:
        return like.new_ones(like.shape[:-2])
    swaps = torch.stack([p != k for k, p in enumerate(places)], -1).sum(-1)
    return (1 - 2 * (swaps % 2)).to(like.dtype)


def _det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    factors, places, _ = _factor(_as_torch_factors(a)[0])
    found = factors.diagonal(0, -2, -1).prod(-1) * _sign(places, a)
    return found, factors, _pivots(places, a)


def _slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    factors, places, _ = _factor(_as_torch_factors(a)[0])
    diagonal = factors.diagonal(0, -2, -1)
    sign = diagonal.sign().prod(-1) * _sign(places, a)
    return sign, diagonal.abs().log().sum(-1), factors, _pivots(places, a)


# --- QR ----------------------------------------------------------------------------------------


def _reflect(x: Tensor) -> tuple[Tensor, Tensor]:
    """A column with its reflection below the first element, and the factor of the reflection."""
    first, rest = x[..., :1, :], x[..., 1:, :]
    if x.shape[-2] == 1:
        return x, torch.zeros_like(first)
    length = x.square().sum(-2, keepdim=True).sqrt()
    head = torch.where(first >= 0, -length, length)
    is_done = rest.abs().amax(-2, keepdim=True) == 0
    safe = torch.where(is_done, 1.0, head)
    tau = torch.where(is_done, 0.0, (head - first) / safe)
    below = torch.where(is_done, 0.0, rest / torch.where(is_done, 1.0, first - head))
    return torch.cat([torch.where(is_done, first, head), below], -2), tau


def _geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    m, n = a.shape[-2:]
    if not m or not n:
        return a, a.new_zeros((*a.shape[:-2], 0))
    column, tau = _reflect(a[..., :, :1])
    if n == 1:
        return column, tau.squeeze(-1)
    right = a[..., :, 1:]
    if m == 1:
        return torch.cat([column, right], -1), tau.squeeze(-1)
    below = column[..., 1:, :]
    share = tau * (right[..., :1, :] + below.mT @ right[..., 1:, :])
    inner, taus = _geqrf(right[..., 1:, :] - below @ share)
    whole = torch.cat([right[..., :1, :] - share, inner], -2)
    return torch.cat([column, whole], -1), torch.cat([tau.squeeze(-1), taus], -1)


def _reflected(h: Tensor, tau: Tensor, c: Tensor, places: Sequence[int]) -> Tensor:
    """A matrix by the reflections of some columns, one after the other."""
    m = h.shape[-2]
    for i in places:
        ones = torch.ones_like(h[..., :1, i : i + 1])
        parts = [torch.zeros_like(h[..., :i, i : i + 1]), ones, h[..., i + 1 :, i : i + 1]]
        vector = torch.cat([p for p in parts if p.shape[-2]], -2)
        assert vector.shape[-2] == m
        c = c - tau[..., i, None, None] * vector @ (vector.mT @ c)
    return c


def _householder_product(h: Tensor, tau: Tensor) -> Tensor:
    places = range(tau.shape[-1] - 1, -1, -1)
    return _reflected(h, tau, _identity(h, h.shape[-2]), places)


def _ormqr(
    h: Tensor, tau: Tensor, c: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    if not left:
        return _ormqr(h, tau, c.mT, True, not transpose).mT
    places = range(tau.shape[-1])
    return _reflected(h, tau, c, places if transpose else places[::-1])


def _qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    m, n = a.shape[-2:]
    h, tau = _geqrf(a)
    k = m if mode == "complete" else min(m, n)
    upper = h[..., :k, :].triu()
    if mode == "r":
        return a.new_empty((0,)), upper
    unit = torch.eye(m, k, dtype=a.dtype).expand(*a.shape[:-2], m, k)
    return _reflected(h, tau, unit, range(min(m, n) - 1, -1, -1)), upper


# --- eigenvalues and singular values ------------------------------------------------------------


def _rotation(a: Tensor, turn: int) -> Tensor:
    """The rotation that makes zeros of the elements of a symmetric matrix at pairs of columns.

    In as many turns as there are columns (one less where the number is even) each is paired with
    every other one: the pairs of a turn share no column.
    """
    n = a.shape[-1]
    even = n + n % 2
    own = torch.arange(n)
    partner = torch.remainder(2 * turn - own, even - 1)
    if n == even:
        partner = torch.where(partner == own, n - 1, partner)
        partner = torch.where(own == n - 1, turn, partner)
    sign = (partner - own).sign().to(a.dtype)
    diagonal = a.diagonal(0, -2, -1)
    index = partner.expand(diagonal.shape)
    other = diagonal.gather(-1, index)
    across = a.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    is_zero = (across == 0) | (sign == 0)
    # Both of a pair compute the same tangent, of another sign.
    theta = (other - diagonal) / torch.where(is_zero, 1.0, 2 * across)
    toward = torch.where(theta == 0, sign, theta.sign())
    tangent = torch.where(is_zero, 0.0, toward / (theta.abs() + (theta.square() + 1).sqrt()))
    cosine = (tangent.square() + 1).rsqrt().unsqueeze(-1)
    exchanged = (partner.unsqueeze(-1) == own).to(a.dtype)
    return torch.eye(n, dtype=a.dtype) * cosine + exchanged * (tangent.unsqueeze(-1) * cosine)


def _turns(a: Tensor) -> Iterator[int]:
    """The turns in which the columns of a matrix are rotated."""
    n = a.shape[-1]
    for _ in range(SWEEPS[a.dtype] if n > 1 else 0):
        yield from range(n + n % 2 - 1)


def _eigh(a: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    half = a if UPLO.upper() == "L" else a.mT
    a = half.tril() + half.tril(-1).mT
    vectors = _identity(a)
    for turn in _turns(a):
        rotation = _rotation(a, turn)
        a = rotation.mT @ a @ rotation
        vectors = vectors @ rotation
    values, order = a.diagonal(0, -2, -1).sort(-1)
    if not compute_v:
        return values, a.new_empty((0,))
    return values, _rows(vectors.mT, order).mT


def _svd(
    a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    m, n = a.shape[-2:]
    if m < n:
        left, values, right = _svd(a.mT, full_matrices, compute_uv)
        return (right.mT, values, left.mT) if compute_uv else (left, values, right)
    if not n and compute_uv:
        return (
            _qr(a, "complete" if full_matrices else "reduced")[0],
            a.new_zeros((*a.shape[:-2], 0)),
            _identity(a, 0),
        )
    vectors = _identity(a)
    for turn in _turns(a):
        rotation = _rotation(a.mT @ a, turn)
        a = a @ rotation
        vectors = vectors @ rotation
    values = a.square().sum(-2).sqrt()
    if n:
        values, order = values.sort(-1, descending=True)
    if not compute_uv:
        return a.new_empty((0,)), values, a.new_empty((0,))
    a, vectors = _rows(a.mT, order).mT, _rows(vectors.mT, order)
    # The columns are orthogonal already: their QR makes unit vectors of them, of a sign that
    # stands on the diagonal, and completes them where a value is zero or more are wanted.
    unit, upper = _qr(a, "complete" if full_matrices else "reduced")
    signs = torch.where(upper.diagonal(0, -2, -1) < 0, -1.0, 1.0).to(a.dtype)
    if full_matrices and m > n:
        signs = torch.cat([signs, signs.new_ones((*signs.shape[:-1], m - n))], -1)
    return unit * signs.unsqueeze(-2), values, vectors


def _pinv(
    a: Tensor,
    *,
    atol: Tensor | None = None,
    rtol: Tensor | None = None,
    hermitian: bool = False,
) -> Tensor:
    m, n = a.shape[-2:]
    absolute = a.new_zeros(()) if atol is None else atol
    if rtol is None:
        smallest = torch.finfo(a.dtype).eps * max(m, n)
        rtol = torch.where(absolute > 0, 0.0, smallest).to(a.dtype)
    if hermitian:
        values, vectors = _eigh(a)
        sizes = values.abs()
        largest = sizes.amax(-1, keepdim=True)
        left, right = vectors, vectors.mT
    else:
        unit, values, right = _svd(a)
        sizes, largest = values, values[..., :1]
        left, right = right.mT, unit.mT
    cutoff = torch.maximum(absolute.unsqueeze(-1), rtol.unsqueeze(-1) * largest)
    is_kept = sizes > cutoff
    inverse = torch.where(is_kept, 1 / torch.where(is_kept, values, 1.0), 0.0)
    return left * inverse.unsqueeze(-2) @ right


# --- the exponential ----------------------------------------------------------------------------

SQUARINGS = 12
"""A matrix whose norm is above two to this is not exact: its exponential overflows, mostly."""


def _matrix_exp(a: Tensor) -> Tensor:
    """Taylor's series of a matrix halved until its norm is below a half, squared as often."""
    if not a.shape[-1]:
        return a
    degree = 10 if a.dtype is torch.float32 else 15
    norm = a.abs().sum(-2).amax(-1)[..., None, None]
    halvings = (torch.log2(norm.clamp_min(0.25)) + 1).ceil().clamp(0, SQUARINGS)
    scaled = a * torch.pow(0.5, halvings)
    unit = _identity(a)
    found = unit
    for k in range(degree, 0, -1):
        found = unit + scaled @ found / k
    for k in range(SQUARINGS):
        found = torch.where(halvings > k, found @ found, found)
    return found
