"""More models in plain torch: networks of layers, attention, physics, control, recommenders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from zoo_plain import LENGTH, WIDTH, Apply, Built, pictures, sequence, vectors, weight, words

__all__ = ["NETWORKS"]


def transformer(norm_first: bool) -> Built:
    layer = nn.TransformerEncoderLayer(
        WIDTH, 4, 32, dropout=0.1, batch_first=True, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), sequence


def decoder() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=x.dtype)
        return m.layer(x, x.flip(1), tgt_mask=mask)

    layer = nn.TransformerDecoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
    return Apply(run, layer=layer), sequence


def gpt() -> Built:
    def run(m: Any, at: torch.Tensor) -> torch.Tensor:
        x = m.table(at) + m.place[: at.shape[1]]
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in m.qkv(m.norm(x)).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return F.cross_entropy((x @ m.table.weight.T).flatten(0, 1), at.flatten())

    return Apply(run, table=nn.Embedding(50, WIDTH), place=weight(LENGTH, WIDTH),
                 norm=nn.LayerNorm(WIDTH), qkv=nn.Linear(WIDTH, 3 * WIDTH)), words  # fmt: skip


def experts() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        share, at = F.softmax(m.router(x), -1).topk(2, -1)
        share = share / share.sum(-1, keepdim=True)
        every = torch.einsum("blk,ekv->blev", x, m.experts).relu()
        return (every.gather(2, at[..., None].expand(-1, -1, -1, WIDTH)) * share[..., None]).sum(2)

    return Apply(run, router=nn.Linear(WIDTH, 4), experts=weight(4, WIDTH, WIDTH)), sequence


def relative_attention() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = m.qkv(x).chunk(3, -1)
        at = torch.arange(LENGTH)
        bias = m.bias[(at[:, None] - at).clamp(-4, 4) + 4]
        score = (q @ k.mT + bias) / WIDTH**0.5
        score = score.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), float("-inf"))
        return torch.softmax(score, -1) @ v

    return Apply(run, qkv=nn.Linear(WIDTH, 3 * WIDTH), bias=weight(9)), sequence


def rotary() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        angle = torch.outer(torch.arange(x.shape[1]), m.rates)
        a, b = m.lin(x).unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack(
            [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1
        )
        return turned.flatten(-2)

    return Apply(run, lin=nn.Linear(WIDTH, WIDTH), rates=weight(WIDTH // 2)), sequence


def set_attention() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        seeds = m.seeds.expand(x.shape[0], -1, -1)
        return m.attention(seeds, x, x, average_attn_weights=False)

    attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
    return Apply(run, attention=attention, seeds=weight(1, 3, WIDTH)), sequence


def slots() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        slot = m.slot.expand(x.shape[0], -1, -1)
        for _ in range(2):
            share = F.softmax(m.q(slot) @ m.k(x).mT, 1) + 1e-8
            found = (share / share.sum(-1, keepdim=True)) @ m.v(x)
            slot = m.cell(found.flatten(0, 1), slot.flatten(0, 1)).view_as(slot)
        return slot

    lin = {n: nn.Linear(WIDTH, WIDTH) for n in "qkv"}
    return Apply(run, **lin, slot=weight(1, 3, WIDTH), cell=nn.GRUCell(WIDTH, WIDTH)), sequence


def unet() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        a = m.down(x)
        b = m.middle(F.max_pool2d(a, 2))
        return m.out(torch.cat([a, F.interpolate(b, scale_factor=2, mode="bilinear")], 1))

    def block(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU())

    return Apply(run, down=block(3, 8), middle=block(8, 16), out=block(24, 8)), pictures


def convolutions(*layers: nn.Module) -> Built:
    return nn.Sequential(*layers), pictures


def patches() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        cut = F.unfold(x, 4, stride=4).transpose(1, 2)
        return F.fold(m.lin(cut).transpose(1, 2), (16, 16), 4, stride=4)

    return Apply(run, lin=nn.Linear(48, 48)), pictures


def shuffle() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        return F.pixel_shuffle(m.conv(F.pixel_unshuffle(x, 2)), 2) + x.roll((1, -1), (2, 3))

    return Apply(run, conv=nn.Conv2d(12, 12, 3, padding=1, padding_mode="reflect")), pictures


def spatial_transformer() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        theta = 0.1 * m.place(x.mean((2, 3))).view(-1, 2, 3) + torch.eye(2, 3, dtype=x.dtype)
        return F.grid_sample(
            x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False
        )

    return Apply(run, place=nn.Linear(3, 6)), pictures


def squeeze_excite() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.conv(x)
        return F.adaptive_avg_pool2d(y * m.gate(y.mean((2, 3), keepdim=True)), (3, 5))

    gate = nn.Sequential(nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 8, 1), nn.Hardsigmoid())
    return Apply(run, conv=nn.Conv2d(3, 8, 3, stride=2, padding=1), gate=gate), pictures


def sound() -> Built:
    net = nn.Sequential(
        nn.Conv1d(WIDTH, 8, 3, dilation=2, padding=2), nn.BatchNorm1d(8), nn.PReLU(8),
        nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1), nn.GLU(1),
    )  # fmt: skip
    return Apply(lambda m, x: m.net(x.mT), net=net), sequence


def normalized() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = F.instance_norm(x.mT).mT + F.local_response_norm(x.mT, 3).mT
        return F.rms_norm(x, (WIDTH,), m.scale) + F.normalize(x, dim=1)

    return Apply(run, scale=weight(WIDTH)), sequence


def spectral() -> Built:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 8)), nn.Softplus(),
                         nn.Dropout(0.3), nn.Linear(8, 3), nn.LogSoftmax(-1)), vectors  # fmt: skip


def hyper() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        made = m.maker(x.mean(1)).view(-1, WIDTH, 4)
        return torch.bmm(x, made).logsumexp(1)

    return Apply(run, maker=nn.Linear(WIDTH, 4 * WIDTH)), sequence


def pendulum() -> Built:
    def slope(m: Any, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(y @ m.a) @ m.b

    def run(m: Any, y: torch.Tensor) -> torch.Tensor:
        for _ in range(3):  # Runge and Kutta
            k1 = slope(m, y)
            k2 = slope(m, y + 0.05 * k1)
            k3 = slope(m, y + 0.05 * k2)
            y = y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + slope(m, y + 0.1 * k3))
        return y

    return Apply(run, a=weight(WIDTH, 8), b=weight(8, WIDTH)), vectors


def gaussian_process() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        kernel = torch.exp(-0.5 * torch.cdist(x / m.scale.exp(), x / m.scale.exp()) ** 2)
        lower = torch.linalg.cholesky(kernel + 0.1 * torch.eye(x.shape[0], dtype=x.dtype))
        z = torch.linalg.solve_triangular(lower, x[:, :1], upper=False)
        return (z * z).sum() + 2 * lower.diagonal().log().sum()

    return Apply(run, scale=torch.zeros(WIDTH)), vectors


def actor_critic() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        logits, value = m.actor(x), m.critic(x).squeeze(-1)
        chosen = logits.argmax(-1, keepdim=True)
        log = F.log_softmax(logits, -1)
        ratio = (log.gather(1, chosen) - log.detach().gather(1, chosen)).exp()[:, 0]
        gain = (x[:, 0] - value).detach()
        policy = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        return -policy.mean() + F.smooth_l1_loss(value, x[:, 0]) + (log.exp() * log).sum(-1).mean()

    return Apply(run, actor=nn.Linear(WIDTH, 4), critic=nn.Linear(WIDTH, 1)), vectors


def crf() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        emit = m.emit(x)
        alpha = emit[:, 0]
        for i in range(1, LENGTH):
            alpha = torch.logsumexp(alpha[:, :, None] + m.move, 1) + emit[:, i]
        return torch.logsumexp(alpha, -1)

    return Apply(run, emit=nn.Linear(WIDTH, 5), move=weight(5, 5)), sequence


def memory() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        store = m.store.expand(x.shape[0], -1, -1)
        for step in x.unbind(1):
            share = F.softmax(F.cosine_similarity(store, step[:, None], dim=-1), -1)
            store = store * (1 - share[..., None] * torch.sigmoid(m.erase(step))[:, None])
            store = store + share[..., None] * m.add(step)[:, None]
        return store

    return Apply(run, store=weight(1, 6, WIDTH), erase=nn.Linear(WIDTH, WIDTH),
                 add=nn.Linear(WIDTH, WIDTH)), sequence  # fmt: skip


def in_place() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        y = m.lin(x)
        y[:, 0] += 1
        y[:, 1:3].mul_(0.5)
        view = y.view(-1, WIDTH)
        view[::2].clamp_(min=0)
        y.masked_fill_(y > 2, 2.0)
        return y, view.sum(0)

    return Apply(run, lin=nn.Linear(WIDTH, WIDTH)), sequence


def moving_average() -> Built:
    module = Apply(_average, lin=nn.Linear(WIDTH, WIDTH))
    module.register_buffer("mean", torch.zeros(WIDTH))
    module.register_buffer("count", torch.zeros((), dtype=torch.long))
    return module, vectors


def _average(m: Any, x: torch.Tensor) -> torch.Tensor:
    if m.training:
        m.count += 1
        m.mean.lerp_(x.detach().mean(0), 0.1)
    return m.lin(x - m.mean) / m.count.clamp(min=1)


# -- recommenders: tables of items, crossed and ranked ------------------------------------------


def items(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 30, (4 * batch, 5)), torch.randn(4 * batch, 4)


def factorization_machine() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        v = m.table(at)
        pairs = 0.5 * (v.sum(1) ** 2 - (v * v).sum(1)).sum(-1)
        return torch.sigmoid(pairs + m.linear(at).sum((1, 2)) + m.dense(x)[:, 0])

    return Apply(run, table=nn.Embedding(30, 8), linear=nn.Embedding(30, 1),
                 dense=nn.Linear(4, 1)), items  # fmt: skip


def dlrm() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        bags = torch.stack([bag(at) for bag in m.bags] + [m.dense(x)], 1)
        rows, columns = torch.tril_indices(4, 4, -1)
        cross = (bags @ bags.mT)[:, rows, columns]
        return m.top(torch.cat([cross, bags[:, -1]], 1))

    bags = nn.ModuleList([nn.EmbeddingBag(30, 8, mode="sum") for _ in range(3)])
    return Apply(run, bags=bags, dense=nn.Linear(4, 8), top=nn.Linear(14, 1)), items


def deep_cross() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        first = h = torch.cat([m.table(at).flatten(1), x], 1)
        for layer in m.layers:
            h = first * layer(h) + h
        return m.top(h)

    layers = nn.ModuleList([nn.Linear(44, 44) for _ in range(2)])
    return Apply(run, table=nn.Embedding(30, 8), layers=layers, top=nn.Linear(44, 1)), items


def two_towers() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(m.table(at).mean(1), dim=-1), F.normalize(m.dense(x), dim=-1)
        logits = a @ b.T / 0.1
        return F.cross_entropy(logits, torch.arange(at.shape[0]))

    return Apply(run, table=nn.Embedding(30, 8), dense=nn.Linear(4, 8)), items


def sampled_ranking() -> Built:
    def run(m: Any, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        score = torch.einsum("bk,bik->bi", m.dense(x), m.table(at))
        return -F.logsigmoid(score[:, :1] - score[:, 1:]).mean(), score.argsort(
            dim=-1, stable=True
        )

    return Apply(run, table=nn.Embedding(30, 8, padding_idx=0), dense=nn.Linear(4, 8)), items


NETWORKS: dict[str, Callable[[], Built]] = {
    "transformer, norm first": lambda: transformer(True),
    "transformer, norm last": lambda: transformer(False),
    "transformer decoder": decoder,
    "causal language model": gpt,
    "mixture of experts": experts,
    "relative attention": relative_attention,
    "rotary positions": rotary,
    "attention over a set": set_attention,
    "slot attention": slots,
    "U-Net": unet,
    "depthwise convolutions": lambda: convolutions(
        nn.Conv2d(3, 12, 3, padding=1, groups=3), nn.BatchNorm2d(12), nn.Hardswish(),
        nn.Conv2d(12, 8, 1), nn.AvgPool2d(2), nn.Mish(), nn.Flatten(), nn.Linear(512, 3),
    ),
    "transposed convolutions": lambda: convolutions(
        nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh(),
    ),
    "images as patches": patches,
    "pixel shuffle": shuffle,
    "spatial transformer": spatial_transformer,
    "squeeze and excite": squeeze_excite,
    "sound": sound,
    "normalizations": normalized,
    "weight norm and dropout": spectral,
    "hypernetwork": hyper,
    "Runge-Kutta": pendulum,
    "Gaussian process": gaussian_process,
    "actor and critic": actor_critic,
    "conditional random field": crf,
    "external memory": memory,
    "writes in place": in_place,
    "moving average": moving_average,
    "factorization machine": factorization_machine,
    "DLRM": dlrm,
    "deep and cross": deep_cross,
    "two towers": two_towers,
    "pairwise ranking": sampled_ranking,
}  # fmt: skip
