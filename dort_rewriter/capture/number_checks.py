"""Functions of torch that look at numbers, which a trace does not have.

``cov`` asks whether its divisor is positive, ``gaussian_nll_loss`` and ``quantile`` (torch 2.8)
whether an argument is in its range, ``linalg.lstsq`` counts the rank of its matrices. They are
traced here as what they give for numbers that eager mode accepts; matrices have full rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class WithoutNumbers(TorchFunctionMode):
    """Calls what gives the same, and looks at no number; distributions check no argument."""

    def __enter__(self) -> Any:
        self._validates = torch.distributions.Distribution._validate_args
        torch.distributions.Distribution.set_default_validate_args(False)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        torch.distributions.Distribution.set_default_validate_args(self._validates)
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _CHECKED:
            with _Checks():  # type: ignore[no-untyped-call]
                return func(*args, **named)
        if func in _REPLACED and "out" not in named:
            return _REPLACED[func](*args, **named)
        return func(*args, **named)


class _Checks(TorchDispatchMode):
    """Answers each question as eager mode's own check has it that raises nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.equal.default:  # of quantiles: whether all are in [0, 1]
            return True
        if func is torch.ops.aten._local_scalar_dense.default:  # whether a variance is negative
            return False
        return func(*args, **(kwargs or {}))


def _cov(
    x: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    if x.dim() > 2 or x.dtype is torch.bool:
        return torch.cov(x, correction=correction, fweights=fweights, aweights=aweights)
    rows = x.view(1, -1) if x.dim() < 2 else x
    given = [w for w in (fweights, aweights) if w is not None]
    weights = given[0] if len(given) == 1 else torch.mul(*given) if given else None
    total = rows.new_full((), rows.shape[1]) if weights is None else weights.sum()
    mean = (rows if weights is None else rows * weights).sum(1, keepdim=True) / total
    if weights is not None and aweights is not None and correction != 0:
        divisor = total - correction * (weights * aweights).sum() / total
    else:
        divisor = total - correction
    divisor = torch.where(divisor <= 0, torch.zeros_like(divisor), divisor)
    apart = rows - mean
    weighted = apart if weights is None else apart * weights
    return torch.true_divide(torch.mm(apart, weighted.t().conj()), divisor).squeeze()


def _corrcoef(x: Tensor) -> Tensor:
    if x.dim() > 2:
        return torch.corrcoef(x)
    found = _cov(x)
    if found.dim() == 0:
        return found / found
    deviation = found.diagonal()
    deviation = (deviation.real if found.is_complex() else deviation).sqrt()
    ratio = found / deviation.view(-1, 1) / deviation.view(1, -1)
    if not ratio.is_complex():
        return ratio.clamp(-1, 1)
    return torch.complex(ratio.real.clamp(-1, 1), ratio.imag.clamp(-1, 1))


def _lstsq(a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """The solution by the triangle of QR: of the least norm where there are many."""
    is_vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    rows, columns = a.shape[-2:]
    if rows >= columns:
        q, r = torch.linalg.qr(a)
        found = torch.linalg.solve_triangular(r, q.mH @ right, upper=True)
    else:
        q, r = torch.linalg.qr(a.mH)
        found = q @ torch.linalg.solve_triangular(r.mH, right, upper=False)
    squares = (a @ found - right).abs().square().sum(-2)
    is_simple = driver in (None, "gelsy")
    ranks = (0,) if driver == "gels" else a.shape[:-2]
    return torch.return_types.linalg_lstsq(  # type: ignore[attr-defined]
        (
            found.squeeze(-1) if is_vector else found,
            squares.new_empty((0,)) if is_simple or rows <= columns else squares,
            torch.full(ranks, min(rows, columns), dtype=torch.int64, device=a.device),
            torch.linalg.svdvals(a.detach())
            if driver in ("gelss", "gelsd")
            else squares.new_empty((0,)),
        )
    )


_CHECKED = frozenset(
    {
        torch.nanquantile,
        torch.nn.functional.gaussian_nll_loss,
        torch.quantile,
        torch.Tensor.nanquantile,
        torch.Tensor.quantile,
    }
)
_REPLACED: dict[Any, Callable[..., Any]] = {
    torch.corrcoef: _corrcoef,
    torch.cov: _cov,
    torch.linalg.lstsq: _lstsq,
    torch.Tensor.corrcoef: _corrcoef,
    torch.Tensor.cov: _cov,
}
