"""Small models written in plain torch, of the kinds that libraries of models have few of:
recurrences, flows, scans, graphs, transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from zoo_check import Subject

__all__ = ["names", "subject"]

WIDTH, LENGTH = 16, 10

Built = tuple[nn.Module, Callable[[int], tuple[Any, ...]]]


class Apply(nn.Module):
    """Parameters by name, and a function of them and the inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def sequence(batch: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, LENGTH, WIDTH),)


def vectors(batch: int) -> tuple[torch.Tensor]:
    return (torch.randn(4 * batch, WIDTH),)


def pictures(batch: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, 16, 16),)


def words(batch: int) -> tuple[torch.Tensor]:
    return (torch.randint(0, 50, (batch, LENGTH)),)


def weight(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes) / math.sqrt(sizes[0])


# -- recurrences ------------------------------------------------------------------------------


def recurrent(kind: type[nn.RNNBase], **options: Any) -> Built:
    return kind(WIDTH, WIDTH, batch_first=True, **options), sequence


def cells(kind: type[nn.Module]) -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        state, found = None, []
        for i in range(LENGTH):
            state = m.cell(x[:, i], state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(found, 1)

    return Apply(run, cell=kind(WIDTH, WIDTH)), sequence


def minimal_gated() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], WIDTH, dtype=x.dtype)
        for step in x.unbind(1):
            f = torch.sigmoid(m.gate(torch.cat([step, h], 1)))
            h = (1 - f) * h + f * torch.tanh(m.new(torch.cat([step, f * h], 1)))
        return h

    return Apply(run, gate=nn.Linear(2 * WIDTH, WIDTH), new=nn.Linear(2 * WIDTH, WIDTH)), sequence


def liquid() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], WIDTH, dtype=x.dtype)
        for step in x.unbind(1):
            for _ in range(2):
                pull = torch.sigmoid(m.a(step) + m.b(h))
                h = h + 0.1 * (-h / F.softplus(m.tau) + pull * (m.goal - h))
        return h

    parts = {"tau": weight(WIDTH), "goal": weight(WIDTH)}
    return Apply(run, a=nn.Linear(WIDTH, WIDTH), b=nn.Linear(WIDTH, WIDTH), **parts), sequence


def echo_state() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        states = [torch.zeros(x.shape[0], WIDTH, dtype=x.dtype)]
        for i in range(x.shape[1]):
            states.append(torch.tanh(x[:, i] @ m.w + states[-1] @ m.r))
        return m.out(torch.stack(states[1:], 1))

    return Apply(run, w=weight(WIDTH, WIDTH), r=weight(WIDTH, WIDTH),
                 out=nn.Linear(WIDTH, 3)), sequence  # fmt: skip


# -- scans and state spaces -------------------------------------------------------------------


def state_space() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        step = F.softplus(m.step(x))
        a = torch.exp(step * -torch.exp(m.a))
        decay = torch.cumsum(torch.log(a), 1)
        return torch.cumsum(step * x * torch.exp(-decay), 1) * torch.exp(decay) + m.d * x

    return Apply(run, step=nn.Linear(WIDTH, WIDTH), a=weight(WIDTH), d=weight(WIDTH)), sequence


def doubling_scan() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        a, b, shift = torch.sigmoid(m.gate(x)), m.value(x), 1
        while shift < LENGTH:
            before_a = F.pad(a, (0, 0, shift, 0), value=1.0)[:, :-shift]
            before_b = F.pad(b, (0, 0, shift, 0))[:, :-shift]
            a, b, shift = a * before_a, b + a * before_b, 2 * shift
        return b

    return Apply(run, gate=nn.Linear(WIDTH, WIDTH), value=nn.Linear(WIDTH, WIDTH)), sequence


def linear_attention() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = m.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.cumsum(torch.einsum("blk,blv->blkv", k, v), 1)
        return torch.einsum("blk,blkv->blv", q, state) / (q * k.cumsum(1)).sum(-1, keepdim=True)

    return Apply(run, qkv=nn.Linear(WIDTH, 3 * WIDTH)), sequence


def retention() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = m.qkv(x).split(WIDTH, -1)
        at = torch.arange(x.shape[1], dtype=x.dtype)
        gap = at[:, None] - at
        decay = torch.where(gap >= 0, torch.sigmoid(m.rate) ** gap.clamp(min=0), 0.0)
        return m.norm((q @ k.mT * decay @ v).transpose(1, 2)).transpose(1, 2)

    return Apply(run, qkv=nn.Linear(WIDTH, 3 * WIDTH), rate=torch.tensor(2.0),
                 norm=nn.GroupNorm(4, WIDTH)), sequence  # fmt: skip


def kalman() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        eye = torch.eye(4, dtype=x.dtype)
        mean, cov = torch.zeros(x.shape[0], 4, dtype=x.dtype), eye.expand(x.shape[0], 4, 4)
        for seen in m.see(x).unbind(1):
            cov = m.move @ cov @ m.move.T + eye * F.softplus(m.noise)
            gain = torch.linalg.solve(cov + eye, cov)
            mean = mean @ m.move.T
            mean = mean + torch.einsum("bij,bj->bi", gain, seen - mean)
            cov = (eye - gain) @ cov
        return mean, cov

    return Apply(run, see=nn.Linear(WIDTH, 4), move=0.5 * weight(4, 4),
                 noise=torch.tensor(0.0)), sequence  # fmt: skip


# -- flows and densities ----------------------------------------------------------------------


def coupling_flow() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        total = torch.zeros(x.shape[0], dtype=x.dtype)
        for net in m.nets:
            a, b = x.chunk(2, 1)
            s, t = net(a).chunk(2, 1)
            b = b * torch.tanh(s).exp() + t
            total = total + torch.tanh(s).sum(1)
            x = torch.cat([b, a], 1)
        return x, total - 0.5 * (x * x).sum(1)

    half = WIDTH // 2
    nets = [nn.Sequential(nn.Linear(half, 32), nn.ReLU(), nn.Linear(32, WIDTH)) for _ in range(3)]
    return Apply(run, nets=nn.ModuleList(nets)), vectors


def planar_flow() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        total = 0.0
        for u, w, b in zip(m.u, m.w, m.b, strict=True):
            inside = torch.tanh(x @ w + b)
            total = total + torch.log((1 + (1 - inside**2) * (u @ w)).abs() + 1e-6)
            x = x + u * inside[:, None]
        return x, total

    return Apply(run, u=weight(3, WIDTH), w=weight(3, WIDTH), b=weight(3)), vectors


def spline_flow() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        widths = F.softmax(m.widths, -1).cumsum(-1)
        at = torch.searchsorted(widths, torch.sigmoid(x.T).contiguous()).clamp(max=6)
        low = torch.gather(widths, 1, at)
        height = torch.gather(F.softplus(m.heights), 1, at)
        return (torch.sigmoid(x.T) - low) * height, torch.log(height).sum(0)

    return Apply(run, widths=weight(WIDTH, 8), heights=weight(WIDTH, 8)), vectors


def mixture_density() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        logits, mean, scale = m.net(x).chunk(3, -1)
        z = (x[:, :1] - mean) * torch.exp(-scale)
        return torch.logsumexp(F.log_softmax(logits, -1) - scale - 0.5 * z * z, -1)

    return Apply(run, net=nn.Linear(WIDTH, 15)), vectors


def variational() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        mean, log = m.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log)
        return m.decode(z), -0.5 * (1 + log - mean**2 - log.exp()).sum(-1)

    return Apply(run, encode=nn.Linear(WIDTH, 8), decode=nn.Linear(4, WIDTH)), vectors


def vector_quantized() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        at = torch.cdist(x, m.codes).argmin(-1)
        code = F.embedding(at, m.codes)
        return x + (code - x).detach(), F.mse_loss(code, x.detach()), at

    return Apply(run, codes=weight(12, WIDTH)), vectors


# -- graphs -----------------------------------------------------------------------------------


def edges(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = 6 * batch
    return torch.randn(count, WIDTH), torch.randint(0, count, (2, 4 * count))


def graph_convolution() -> Built:
    def run(m: Any, x: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        start, end = edge
        degree = torch.ones(x.shape[0], dtype=x.dtype).scatter_add(
            0, end, torch.ones_like(end, dtype=x.dtype)
        )
        norm = degree.rsqrt()
        message = m.lin(x)[start] * (norm[start] * norm[end])[:, None]
        return torch.zeros_like(message[: x.shape[0]]).index_add(0, end, message)

    return Apply(run, lin=nn.Linear(WIDTH, WIDTH)), edges


def graph_attention() -> Built:
    def run(m: Any, x: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        h, (start, end) = m.lin(x), edge
        score = F.leaky_relu(h[start] @ m.a + h[end] @ m.b, 0.2)
        top = torch.full((x.shape[0],), -1e9, dtype=x.dtype).scatter_reduce(0, end, score, "amax")
        score = torch.exp(score - top[end])
        total = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, end, score)
        return torch.zeros_like(h).index_add(0, end, h[start] * (score / total[end])[:, None])

    return Apply(run, lin=nn.Linear(WIDTH, WIDTH), a=weight(WIDTH), b=weight(WIDTH)), edges


def edge_pooling() -> Built:
    def run(m: Any, x: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        pair = m.net(torch.cat([x[edge[0]], x[edge[1]] - x[edge[0]]], -1))
        at = edge[1][:, None].expand_as(pair)
        found = torch.zeros_like(x).scatter_reduce(0, at, pair, "mean", include_self=False)
        return found.relu()

    return Apply(run, net=nn.Linear(2 * WIDTH, WIDTH)), edges


def dense_graph() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        near = torch.cdist(x, x).topk(3, largest=False).indices
        link = torch.zeros(x.shape[0], x.shape[1], x.shape[1], dtype=x.dtype).scatter_(
            2, near, 1.0
        )
        return torch.relu(link @ m.lin(x) / link.sum(-1, keepdim=True))

    return Apply(run, lin=nn.Linear(WIDTH, WIDTH)), sequence


def point_set() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.after(m.before(x).max(1).values)

    before = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, 32))
    return Apply(run, before=before, after=nn.Linear(32, 5)), sequence


# -- transforms -------------------------------------------------------------------------------


def fourier_operator() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        modes = torch.fft.rfft(x, dim=1)[:, :4]
        mixed = torch.einsum("blk,lkv->blv", modes, torch.complex(m.re, m.im).to(modes.dtype))
        return torch.fft.irfft(mixed, n=LENGTH, dim=1) + m.skip(x)

    return Apply(run, re=weight(4, WIDTH, WIDTH), im=weight(4, WIDTH, WIDTH),
                 skip=nn.Linear(WIDTH, WIDTH)), sequence  # fmt: skip


def fourier_mixing() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.norm(torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real + m.lin(x))

    return Apply(run, norm=nn.LayerNorm(WIDTH), lin=nn.Linear(WIDTH, WIDTH)), sequence


def spectrogram() -> Built:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        frames = x.flatten(1).unfold(1, 16, 8) * torch.hann_window(16, dtype=x.dtype)
        power = torch.fft.rfft(frames).abs() ** 2
        return torch.log1p(m.mel(power)).mean(1)

    return Apply(run, mel=nn.Linear(9, 6)), sequence


def wavelets() -> Built:
    def run(m: Any, x: torch.Tensor) -> Any:
        found, low = [], x.mT
        for _ in range(2):
            low = F.pad(low, (0, low.shape[-1] % 2))
            even, odd = low[..., ::2], low[..., 1::2]
            high = odd - m.predict * even
            low = even + m.update * high
            found.append(high)
        return [*found, low]

    return Apply(run, predict=torch.tensor(1.0), update=torch.tensor(0.5)), sequence


FIRST: dict[str, Callable[[], Built]] = {
    "LSTM of two layers": lambda: recurrent(nn.LSTM, num_layers=2),
    "bidirectional GRU": lambda: recurrent(nn.GRU, bidirectional=True),
    "RNN with ReLU": lambda: recurrent(nn.RNN, nonlinearity="relu"),
    "LSTM with projection": lambda: recurrent(nn.LSTM, proj_size=4),
    "LSTM cells": lambda: cells(nn.LSTMCell),
    "GRU cells": lambda: cells(nn.GRUCell),
    "minimal gated unit": minimal_gated,
    "liquid time constants": liquid,
    "echo state network": echo_state,
    "selective state space": state_space,
    "scan by doubling": doubling_scan,
    "linear attention": linear_attention,
    "retention": retention,
    "Kalman filter": kalman,
    "coupling flow": coupling_flow,
    "planar flow": planar_flow,
    "spline flow": spline_flow,
    "mixture density": mixture_density,
    "variational autoencoder": variational,
    "vector quantization": vector_quantized,
    "graph convolution": graph_convolution,
    "graph attention": graph_attention,
    "edge pooling": edge_pooling,
    "nearest neighbours": dense_graph,
    "set of points": point_set,
    "Fourier operator": fourier_operator,
    "Fourier mixing": fourier_mixing,
    "spectrogram": spectrogram,
    "lifted wavelets": wavelets,
}


def models() -> dict[str, Callable[[], Built]]:
    from zoo_networks import NETWORKS

    return {**FIRST, **NETWORKS}


def names() -> list[str]:
    """The models there are."""
    return list(models())


def subject(name: str) -> Subject:
    """Build a model, the same weights each time."""
    torch.manual_seed(0)
    module, make = models()[name]()
    return Subject(name, module, lambda batch: (make(batch), {}))


def load() -> None:
    """Nothing but torch is needed."""
