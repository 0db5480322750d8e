"""The steps of random programs of views and writes: all a caller can tell of who shares memory.

``{t}`` ``{u}``: tensors; ``{d}`` ``{e}``: dimensions of the first; ``{k}``: 1, 2 or 3. ``*::`` in
front: there are two results or more.
"""

from __future__ import annotations

__all__ = ["BASES", "OF_BASES", "TABLES", "WEIGHTS", "WRITES"]

BASES = (
    "torch.randn(n, 6)",
    "torch.randn(n, 6)",
    "torch.randn(6, n).t()",
    "torch.randn(n, 12)[:, 1:7]",
    "torch.randn(2 * n, 6)[::2]",
    "torch.randn(n, 1).expand(n, 6)",
    "torch.randn(n, 3, 4)",
    "torch.randn(n, 4, 3).transpose(1, 2)",
    "torch.randn(n, n)",
    "torch.randn(3 * n)",
    "torch.randn(n, 6, dtype=torch.float64)",
    "torch.arange(6 * n).view(n, 6)",
    "torch.arange(6 * n, dtype=torch.int32).view(n, 6)",
    "torch.randn(n, 6) > 0",
)
OF_BASES = ("{b}", "{b}", "{b}", "{b}[1:]", "{b}[:-1]", "{b}[::2]", "{b}.t()", "{b}[..., 1]")
OF_BASES += ("{b}.view(-1)", "{b}.detach()", "{b}[:, 1:4]", "{b}.view(-1)[2:]", "{b}[2:3]")

VIEWS = """
{t}[1:]
{t}[:-1]
{t}[::2]
{t}[-2:]
{t}[0]
{t}[-1]
{t}[..., 1]
{t}[:, 1:3]
{t}[..., :2]
{t}[..., 1::2]
{t}[2:2]
{t}[: {t}.shape[0] // 2]
{t}[None]
{t}.select({d}, {k})
{t}.narrow({d}, 1, 2)
{t}.transpose({d}, {e})
{t}.t()
{t}.mT
{t}.permute(*reversed(range({t}.dim())))
{t}.movedim({d}, {e})
{t}.swapaxes({d}, {e})
{t}.reshape(-1)
{t}.view(-1)
{t}.flatten()
{t}.flatten({d})
{t}.ravel()
{t}.view({t}.shape[0], -1)
{t}.view(-1, 2)
{t}.reshape(2, -1)
{t}.reshape({t}.shape[0], 2, -1)
{t}.unflatten(-1, (2, -1))
{t}.unsqueeze({d})
{t}.unsqueeze(-1)
{t}.squeeze()
{t}.squeeze({d})
{t}.expand(2, *{t}.shape)
{t}[..., :1].expand({t}.shape)
{t}.expand_as({t})
{t}.diagonal()
{t}.diagonal(1)
{t}.diagonal(-1, {d}, {e})
{t}.unfold({d}, 2, 1)
{t}.unfold({d}, 2, 2)
{t}.as_strided((2, 2), (1, 1))
{t}.as_strided((3,), (2,))
{t}.as_strided((2, 3), (3, 1), 1)
{t}.as_strided({t}.shape, {t}.stride())
{t}.detach()
{t}.view_as({t})
{t}.view(torch.int32)
{t}.view(torch.uint8)
{t}.view({t}.dtype)
{t}.contiguous()
{t}.clone()
{t}.reshape({t}.shape)
{t}.to({t}.dtype)
{t}.data
torch.broadcast_to({t}, (2, *{t}.shape))
{t}.adjoint()
{t}.real
""".strip().splitlines()
SEVERAL = """
*::{t}.split(2, {d})
*::{t}.chunk(2, {d})
*::{t}.chunk(3, {d})
*::{t}.unbind({d})
*::{t}.tensor_split(3, {d})
*::{t}.tensor_split((1, 3), {d})
*::{t}.split([1, {t}.shape[0] - 1])
*::{t}.split({t}.shape[0] // 2)
""".strip().splitlines()
COMPUTED = """
{t} * 2
{t} + 1
{t} + {u}
{t} * {u}
{t}.sum({d})
{t}.sum()
{t}.cumsum({d})
-{t}
torch.cat([{t}, {u}])
torch.stack([{t}, {t} + 1], {d})
{t}.relu()
{t}.to(torch.float64)
torch.where({t} > 0, {t}, {u})
{t}.flip({d})
{t} > 0
{t}.max({d}).values
{t}.sin()
{t}.softmax({d})
torch.zeros_like({t})
{t}.new_zeros({t}.shape)
{t}.repeat(2, *[1] * ({t}.dim() - 1))
""".strip().splitlines()
WRITES = """
{t}.mul_(2)
{t}.add_(1)
{t}.add_({u})
{t}.copy_({u})
{t}.zero_()
{t}.fill_(3)
{t}[1:].mul_(3)
{t}[0] = 5
{t}[..., 1].add_(2)
{t}[..., 0] = {u}[..., 0]
{t}.clamp_(min=0)
{t}.t().mul_(2)
{t}.view(-1)[::2].add_(1)
{t}.diagonal().fill_(1)
{t}.logical_not_()
{t}.unsqueeze_(0)
{t}.transpose_(0, -1)
{t}.squeeze_()
{t}.detach().add_(1)
{t}.copy_({t} + 1)
{t}[1:].copy_({t}[:-1].clone())
{t}.chunk(2)[0].mul_(2)
""".strip().splitlines()

TABLES = (VIEWS, SEVERAL, COMPUTED, WRITES)
WEIGHTS = (45, 10, 20, 25)
"""How often a step is of each table."""
