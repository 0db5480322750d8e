"""The steps of random programs: expressions with places for operands.

``{t}`` ``{u}`` ``{w}``: tensors; ``{f}`` ``{g}`` ``{h}``: of floating point; ``{i}`` ``{j}``: of
integers; ``{b}`` ``{c}``: of booleans; ``{s}``: a number; ``{d}``: a dimension of the first
tensor; ``{k}``: 1, 2 or 3. ``2::`` in front: how many results there are.
"""

from __future__ import annotations

__all__ = ["ORDERED_STEPS", "STEPS", "WRITES"]

ARITHMETIC = """
{t} + {u}
{t} - {u}
{t} * {u}
{t} + {s}
{s} - {t}
{t} * {s}
{t} / 2
{t} / ({u}.abs() + 1)
{t} // 2
{t} // 2.5
{t} // ({u} * {u} + 1)
{t} % 3
torch.remainder({t}, ({u} * {u} + 1))
torch.fmod({t}, 2.5)
torch.div({t}, {s}, rounding_mode="trunc") if {s} else {t} + 1
torch.div({t}, {u}.abs() + 1, rounding_mode="floor")
torch.add({t}, {u}, alpha=2)
torch.sub({t}, {u}, alpha=0.5)
torch.addcmul({f}, {g}, {h}, value=0.5)
torch.addcdiv({f}, {g}, {h}.abs() + 1)
torch.lerp({f}, {g}, 0.3)
torch.where({b}, {t}, {u})
torch.where({b}, {t}, {s})
{t}.masked_fill({b}, {s})
torch.maximum({t}, {u})
torch.minimum({t}, {u})
torch.clamp({t}, -1, 1)
torch.clamp({t}, min={s})
torch.clamp({t}, max={u})
-{t}
{t}.abs()
{t}.sign()
{t} ** 2
{t} ** {k}
({f}.abs() + 0.5) ** {g}.clamp(-2, 2)
{k} ** {f}.clamp(-3, 3)
{i} ** {k}
{i} & {j}
{i} | 3
{i} ^ {j}
{i} << 1
~{b}
{b} & {c}
{b} | {c}
{b} ^ {c}
{t} > {u}
{t} <= {s}
{t} == {u}
{t} != {s}
torch.logical_and({t}, {u})
torch.logical_not({t})
torch.isfinite({t})
torch.copysign({f}, torch.nan_to_num({g}))
torch.hypot({f}, {g})
torch.atan2({f}, {g})
torch.nan_to_num({f})
torch.heaviside({f}, {g})
torch.square({t})
torch.reciprocal({t}.abs() + 1)
torch.rsub({t}, {s})
torch.angle({f})
"""

FUNCTIONS = """
torch.exp({f}.clamp(max=4))
torch.log({f}.abs() + 0.5)
torch.log1p({f}.abs())
torch.expm1({f}.clamp(max=3))
torch.sqrt({f}.abs() + 0.1)
torch.rsqrt({f}.abs() + 0.5)
torch.sin({t})
torch.cos({f})
torch.tan({f}.clamp(-1, 1))
torch.tanh({t})
torch.sinh({f}.clamp(-2, 2))
torch.asinh({f})
torch.acos({f}.tanh() * 0.9)
torch.atan({f})
torch.erf({f})
torch.sigmoid({t})
torch.floor({f})
torch.ceil({f})
torch.round({f})
torch.trunc({f})
torch.frac({f})
F.relu({t})
F.gelu({f})
F.gelu({f}, approximate="tanh")
F.silu({f})
F.softplus({f})
F.elu({f})
F.leaky_relu({f}, 0.1)
F.hardswish({f})
F.mish({f})
F.logsigmoid({f})
F.threshold({f}, 0.1, 2.0)
F.softmax({f}, {d})
F.log_softmax({f}, {d})
F.layer_norm({f}, {f}.shape[-1:])
F.normalize({f}, dim={d})
{t}.to(torch.float32)
{t}.float()
{f}.clamp(-5, 5).to(torch.int64)
{t}.bool()
{f}.double()
{f}.to(torch.float16)
{f}.to(torch.bfloat16)
{f}.clamp(-5, 5).to(torch.int8)
{t}.type_as({u}) if {u}.is_floating_point() else {t} * 1
"""

REDUCTIONS = """
{t}.sum()
{t}.sum({d})
{t}.sum({d}, keepdim=True)
{f}.mean()
{f}.mean({d}, keepdim=True)
{t}.sum(dtype=torch.float32)
{t}.prod({d})
{t}.amax({d})
{t}.amin({d}, keepdim=True)
{t}.max()
2::{t}.max({d})
{t}.min({d}).values
{t}.argmax({d})
{t}.argmin()
{t}.any()
{t}.all({d})
{f}.var({d}, unbiased=False)
{f}.std()
2::torch.var_mean({f}, {d}, correction=0)
{f}.norm()
torch.linalg.vector_norm({f}, 1, {d})
{f}.logsumexp({d})
{t}.cumsum({d})
{f}.clamp(-1, 1).cumprod({d})
{t}.count_nonzero({d})
2::{t}.sort({d}, stable=True)
{t}.argsort({d}, stable=True)
2::{t}.topk(1, {d})
{t}.cummax({d}).values
{t}.median()
{t}.numel() + {u}
{t}.shape[0] * {u}
"""

VIEWS = """
{t}.t()
{t}.transpose(0, {d})
{t}.mT
{t}.reshape(-1)
{t}.view(-1)
{t}.view({t}.shape)
{t}.flatten()
{t}.unsqueeze({d})
{t}.unsqueeze(-1)
{t}.squeeze()
{t}.squeeze({d})
{t}[None]
{t}[0]
{t}[-1]
{t}[1:]
{t}[:-1]
{t}[::2]
{t}[..., 0]
{t}[..., 1:]
{t}[..., ::2]
{t}[:, :1]
{t}[: {t}.shape[0] // 2]
{t}.select({d}, 0)
{t}.narrow({d}, 0, 1)
{t}.narrow(0, {t}.shape[0] // 2, 1)
2::{t}.chunk(2, {d})
{t}.chunk(3, {d})[-1]
{t}.split(2, {d})[0]
{t}.split(2)[-1]
{t}.split({t}.shape[0] // 2)[1]
2::{t}.split(({t}.shape[0] - 1, 1))
{t}.unbind({d})[0]
{t}.unbind()[-1]
torch.tensor_split({t}, 2, {d})[1]
{t}.expand(2, *{t}.shape)
{t}.expand_as({u})
{t}.diagonal()
{t}.movedim(0, -1)
{t}.unfold({d}, 2, 1)
{t}.as_strided((2,), (1,)) if {t}.numel() > 1 else {t} * 1
{t}.view_as({u})
{t}.detach()
{t}.unflatten(0, (2, -1))
torch.broadcast_to({t}, (2, *{t}.shape))
{t}.swapaxes(0, -1)
{t}.real
"""

SHAPES = """
torch.cat([{t}, {u}])
torch.cat([{t}, {t}], {d})
torch.cat([{t}[1:], {u}], {d})
torch.stack([{t}, {t}])
torch.stack([{t}, {u}], -1)
torch.hstack([{t}, {u}])
{t}.repeat(2, *([1] * {t}.dim()))
{t}.repeat_interleave(2, {d})
torch.tile({t}, (2,))
{t}.flip({d})
{t}.roll(1, {d})
torch.tril({t})
torch.triu({t}, 1)
{t}.clone()
{t}.contiguous()
torch.zeros_like({t})
torch.ones_like({t}, dtype=torch.float32)
torch.full_like({t}, 2)
torch.full(({t}.shape[0], 2), 1.5)
torch.arange({t}.shape[0])
torch.arange(0, {t}.shape[-1], dtype=torch.float32) + {t}
{t}.new_zeros({t}.shape[0], 2)
F.pad({t}, (1, 2))
F.pad({f}, (1, 0), value=0.5)
torch.eye({t}.shape[0])
torch.diag_embed({t})
torch.meshgrid({t}.reshape(-1), {u}.reshape(-1), indexing="ij")[1]
torch.empty_strided((2, 2), (1, 2)).fill_(1.5)
torch.broadcast_tensors({t}, {u})[0]
"""

INDEXING = """
{t}[{b}.reshape(-1)[:1].long()]
{t}[torch.arange({t}.shape[0]).flip(0)]
{t}[:, torch.tensor([0])]
{t}[torch.tensor([0, -1])]
{t}.index_select({d}, torch.tensor([0, 0]))
{t}.gather({d}, torch.zeros({t}.shape, dtype=torch.int64))
{t}.take_along_dim({t}.argsort({d}, stable=True), {d})
{t}.scatter({d}, torch.zeros({t}.shape, dtype=torch.int64)[:1], 1)
{t}.scatter_add({d}, torch.zeros({t}.shape, dtype=torch.int64), {t})
{t}.index_add(0, torch.zeros({t}.shape[0], dtype=torch.int64), {t})
{t}.index_fill({d}, torch.tensor([0]), 2)
{t}.index_put((torch.tensor([0, 0]),), {t}[:2], accumulate=True)
{t}.slice_scatter({t}[:1] * 2, 0, 0, 1)
{t}.select_scatter({t}[0] + 1, 0, 0)
{t}.masked_scatter({t} > 0, {t}.flip(0))
F.one_hot({i}.clamp(0, 3).long(), 4)
F.embedding(({i}.clamp(0, 1)).long(), {f})
torch.bucketize({f}, torch.tensor([-1.0, 0.0, 1.0]))
torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), {f}.float())
"""

PRODUCTS = """
{f} @ {g}
{f} @ {f}.mT
{f} @ {g}.mT
{f}.mT @ {f}
torch.outer({f}.reshape(-1)[:5], {g}.reshape(-1)[:5])
torch.mv({f}, {g})
torch.dot({f}.reshape(-1)[:3], {f}.reshape(-1)[-3:])
torch.einsum("...i,...j->...ij", {f}, {g})
F.linear({f}, {g})
torch.bmm({f}, {f}.mT)
torch.addmm({f}, {g}, {h})
torch.baddbmm({f}, {g}, {h})
torch.cdist({f}.float(), {f}.float() + 1)
torch.kron({f}.reshape(-1)[:3], {g}.reshape(-1)[:3])
F.mse_loss({f}, {g})
F.smooth_l1_loss({f}, {g})
F.cross_entropy({f}, {i}.long().clamp(0, 1))
F.binary_cross_entropy_with_logits({f}, {g}.sigmoid())
F.scaled_dot_product_attention({f}, {f}, {f})
F.avg_pool1d({f}, 2)
F.max_pool1d({f}, 2)
F.avg_pool2d({f}, 2, ceil_mode=True)
F.adaptive_avg_pool1d({f}, 2)
F.interpolate({f}, scale_factor=2)
F.conv1d({f}, {f}[:1].mT[:1] * 1)
F.cosine_similarity({f}, {g}, dim={d})
"""

DRAWN = """
F.dropout({f}, 0.3)
F.dropout({f}.mT, 0.5)
F.alpha_dropout({f}, 0.4, training=True)
torch.bernoulli({f}.sigmoid())
torch.rand_like({f})
torch.randn_like({f}) * {g}
torch.randint_like({t}, 5)
torch.rand({t}.shape[0])
torch.randperm({t}.shape[0])
torch.empty_like({f}).normal_()
torch.empty_like({f}).uniform_(-1, 1)
torch.empty_like({f}).exponential_()
torch.empty_like({f}).geometric_(0.3)
torch.empty_like({f}).bernoulli_(0.7)
torch.normal({f}, 0.5)
torch.poisson({f}.abs())
F.gumbel_softmax({f}, dim={d})
F.rrelu({f}, training=True)
torch.multinomial({f}.abs() + 0.1, 1)
"""

WRITTEN = """
{t}.add_({s})
{t}.add_({u})
{t}.mul_({u})
{f}.mul_(0.5)
{t}.zero_()
{t}.fill_({s})
{t}.copy_({u})
{t}[0] = {s}
{t}[..., 0] = {s}
{t}[:1] = {u}[:1]
{t}[1:].add_(1)
{t}[..., ::2].mul_(2)
{t}.t().add_(1)
{t}.view(-1)[0] = 2
{t}.transpose(0, {d})[0] = 1
{f}.tanh_()
{f}.clamp_(-1, 1)
{f}.relu_()
{f}.sigmoid_()
{t}.masked_fill_({t} > 1, {s})
{t}[{t} > 1] = 0
{t}.index_add_(0, torch.zeros({t}.shape[0], dtype=torch.int64), {t} * 1)
{t}.index_fill_({d}, torch.tensor([0]), 3)
{t}.scatter_({d}, torch.zeros({t}.shape, dtype=torch.int64)[:1], 2)
{t} += 1
{t}[torch.tensor([0])] = {s}
{b}.logical_not_()
{f}.addcmul_({f} * 1, {g}, value=0.5)
{t}.diagonal().fill_(1)
{t}.select({d}, 0).add_(1)
{t}.chunk(2)[0].mul_(2)
{t}.squeeze_(0)
{t}.unsqueeze_(0)
{t}.t_()
{f}.normal_()
{f}.uniform_()
"""


ALGEBRA = """
torch.linalg.det({f})
torch.logdet({f} @ {f}.mT + torch.eye({f}.shape[-2], dtype={f}.dtype))
2::torch.linalg.slogdet({f})
torch.linalg.inv({f} + 4 * torch.eye({f}.shape[-1], dtype={f}.dtype))
torch.linalg.inv({f}.mT + 4 * torch.eye({f}.shape[-1], dtype={f}.dtype))
torch.linalg.solve({f} + 4 * torch.eye({f}.shape[-1], dtype={f}.dtype), {g})
torch.linalg.solve({f} + 4 * torch.eye({f}.shape[-1], dtype={f}.dtype), {f}, left=False)
torch.linalg.solve_triangular({f} + 4, {f}, upper=False)
2::torch.linalg.qr({f})
torch.linalg.qr({f}.mT).R
torch.linalg.cholesky({f} @ {f}.mT + torch.eye({f}.shape[-2], dtype={f}.dtype))
torch.cholesky_solve({f}, {f}.tril() + 4 * torch.eye({f}.shape[-1], dtype={f}.dtype))
torch.linalg.eigh({f} + {f}.mT).eigenvalues
torch.linalg.eigvalsh({f} @ {f}.mT)
torch.linalg.svdvals({f})
torch.linalg.matrix_norm({f})
torch.linalg.matrix_exp({f}.clamp(-1, 1))
torch.linalg.matrix_power({f}, 2)
torch.trace({f})
"""

PLANES = """
F.conv2d({f}, torch.ones((2, {f}.shape[1], 2, 2), dtype={f}.dtype), padding=1)
F.conv_transpose2d({f}, torch.ones(({f}.shape[1], 2, 2, 2), dtype={f}.dtype))
F.max_pool2d({f}, 2)
F.avg_pool2d({f}, 2)
F.adaptive_avg_pool2d({f}, 2)
F.adaptive_max_pool2d({f}, 1)
F.batch_norm({f}, None, None, training=True)
F.instance_norm({f})
F.group_norm({f}, 1)
F.layer_norm({f}, {f}.shape[1:])
F.interpolate({f}, scale_factor=2, mode="bilinear")
F.interpolate({f}, scale_factor=2, mode="nearest")
F.pad({f}, (1, 1, 1, 1), mode="reflect")
F.pad({f}, (1, 1), mode="replicate")
F.pixel_unshuffle({f}, 2)
F.channel_shuffle({f}, 1)
F.dropout2d({f}, 0.3)
{f}.mean((-2, -1))
{f}.flatten(1)
{f}.contiguous(memory_format=torch.channels_last)
{f} + {f}.contiguous()
{f}.permute(*reversed(range({f}.dim())))
{f}.clone()
{f}.clone(memory_format=torch.contiguous_format)
"""


def _steps(*tables: str) -> list[str]:
    return [line for table in tables for line in table.splitlines() if line]


STEPS = _steps(ARITHMETIC, FUNCTIONS, REDUCTIONS, VIEWS, VIEWS, SHAPES, INDEXING, PRODUCTS, DRAWN)
"""Expressions that make something new, or look at a tensor in another way."""

ORDERED_STEPS = _steps(ALGEBRA, PLANES)
"""Expressions that show in what order the elements of a tensor lie, or that look at it."""

WRITES = _steps(WRITTEN)
"""Statements that change a tensor."""
