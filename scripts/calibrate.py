"""Measure operators that may run faster in torch: the table of ``plan/placement.py``.

usage: python scripts/calibrate.py [--ops a,b] [--types a,b] [--json FILE] [--repeat N]

Each operator is captured alone, converted, and timed in ONNX Runtime, in a session that calls
torch's kernel where there is such a node, and in torch, in turn, on one thread each, several
sizes. A figure is nanoseconds of CPU per unit of work (``_work``): of the process, so that a
busy machine does not count. Operators whose ratio is above 1.1 at every size are printed as lines
for the table, with the largest size's figures; those above 2 belong there.
Of torch's kernels in sessions the worst and the best ratio to ONNX Runtime are printed by type.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.compiler.block import compile_graph
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.placement import KERNEL, KERNEL_TYPES, Place, work_of
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.runtime.providers import CPU

aten = torch.ops.aten

Case = tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]


def convolutions() -> Iterator[Case]:
    for name, mask in (
        ("weight", (False, True, True)),
        ("both", (True, True, True)),
    ):
        for batch, channels, out, size, kernel, stride in (
            (16, 3, 16, 32, 3, 1),
            (16, 16, 32, 16, 3, 1),
            (4, 64, 64, 16, 3, 1),
            (4, 64, 128, 16, 3, 2),
            (4, 128, 128, 8, 3, 1),
            (4, 256, 64, 8, 1, 1),
            (4, 3, 64, 64, 7, 2),
        ):
            pad = kernel // 2
            x = torch.randn(batch, channels, size, size)
            w = torch.randn(out, channels, kernel, kernel)
            grad = torch.randn_like(torch.conv2d(x, w, stride=stride, padding=pad))

            def run(
                grad: torch.Tensor,
                x: torch.Tensor,
                w: torch.Tensor,
                stride: int = stride,
                pad: int = pad,
                mask: tuple[bool, bool, bool] = mask,
            ) -> Any:
                results = aten.convolution_backward(
                    grad, x, w, [w.shape[0]], [stride, stride], [pad, pad], [1, 1], False,
                    [0, 0], 1, mask,
                )  # fmt: skip
                return [r for r in results if r is not None]

            yield f"aten::convolution_backward {name}", run, (grad, x, w)


def forward_convolutions() -> Iterator[Case]:
    for batch, channels, out, size, kernel in (
        (16, 16, 32, 16, 3), (4, 64, 64, 16, 3), (4, 256, 64, 8, 1), (4, 96, 576, 3, 1),
        (4, 40, 240, 6, 1), (4, 24, 88, 12, 1), (4, 16, 72, 24, 1), (1, 64, 64, 28, 1),
        (8, 64, 128, 28, 1),
    ):  # fmt: skip
        x = torch.randn(batch, channels, size, size)
        w = torch.randn(out, channels, kernel, kernel)

        def run(x: torch.Tensor, w: torch.Tensor, pad: int = kernel // 2) -> Any:
            return [torch.conv2d(x, w, padding=pad)]

        yield "aten::convolution", run, (x, w)


def pools() -> Iterator[Case]:
    for batch, channels, size, kernel, stride, pad in (
        (16, 16, 32, 2, 2, 0), (4, 64, 32, 3, 2, 1), (16, 64, 56, 3, 2, 1),
    ):  # fmt: skip
        x = torch.randn(batch, channels, size, size)
        geometry = ([kernel, kernel], [stride, stride], [pad, pad])

        def forward(x: torch.Tensor, geometry: Any = geometry) -> Any:
            return list(aten.max_pool2d_with_indices(x, *geometry))

        yield "aten::max_pool2d_with_indices", forward, (x,)
        values, indices = forward(x)

        def backward(
            grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor, geometry: Any = geometry
        ) -> Any:
            return [
                aten.max_pool2d_with_indices_backward(grad, x, *geometry, [1, 1], False, indices)
            ]

        yield "aten::max_pool2d_with_indices_backward", backward, (values, x, indices)


def norms() -> Iterator[Case]:
    for batch, channels, size in ((16, 16, 32), (4, 64, 16), (4, 256, 8)):
        x = torch.randn(batch, channels, size, size)
        weight, bias = torch.randn(channels), torch.randn(channels)
        mean, var = torch.zeros(channels), torch.ones(channels)

        def forward(*args: torch.Tensor) -> Any:
            return list(aten._native_batch_norm_legit_functional(*args, True, 0.1, 1e-5))

        yield "aten::_native_batch_norm_legit_functional", forward, (x, weight, bias, mean, var)
        _, m, s, _, _ = forward(x, weight, bias, mean, var)

        def backward(grad: torch.Tensor, *args: torch.Tensor) -> Any:
            return list(
                aten.native_batch_norm_backward(grad, *args, True, 1e-5, [True, True, True])
            )

        given = (torch.randn_like(x), x, weight, mean, var, m, s)
        yield "aten::native_batch_norm_backward", backward, given


def embeddings() -> Iterator[Case]:
    for rows, width, count in ((1000, 64, 512), (1024, 256, 512), (30000, 256, 1024)):
        grad, index = torch.randn(count, width), torch.randint(0, rows, (count,))

        def run(grad: torch.Tensor, index: torch.Tensor, rows: int = rows) -> Any:
            return [aten.embedding_dense_backward(grad, index, rows, -1, False)]

        yield "aten::embedding_dense_backward", run, (grad, index)


def attention() -> Iterator[Case]:
    for batch, heads, length, width in ((2, 4, 128, 64), (4, 4, 256, 64)):
        q, k, v = (torch.randn(batch, heads, length, width) for _ in range(3))

        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return list(aten._scaled_dot_product_flash_attention_for_cpu(q, k, v))

        yield "aten::_scaled_dot_product_flash_attention_for_cpu", run, (q, k, v)
        out, lse = run(q, k, v)

        def backward(*args: torch.Tensor) -> Any:
            return list(
                aten._scaled_dot_product_flash_attention_for_cpu_backward(*args, 0.0, False)
            )

        given = (torch.randn_like(out), q, k, v, out, lse)
        yield "aten::_scaled_dot_product_flash_attention_for_cpu_backward", backward, given


def products() -> Iterator[Case]:
    for m, k, n in ((32, 64, 64), (128, 512, 512), (512, 1024, 1024)):
        a, b, row = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        yield "aten::mm", lambda a, b: [torch.mm(a, b)], (a, b)
        yield "aten::addmm", lambda *given: [torch.addmm(*given)], (row, a, b)
    for batch, m, k, n in ((8, 64, 64, 64), (8, 256, 64, 256)):
        a, b = torch.randn(batch, m, k), torch.randn(batch, k, n)
        yield "aten::bmm", lambda a, b: [torch.bmm(a, b)], (a, b)


def elementwise() -> Iterator[Case]:
    x, y = torch.randn(512, 1024), torch.randn(512, 1024)
    functions = {
        "aten::gelu": lambda x, y: [aten.gelu(x)],
        "aten::gelu_backward": lambda x, y: [aten.gelu_backward(y, x)],
        "aten::silu": lambda x, y: [aten.silu(x)],
        "aten::silu_backward": lambda x, y: [aten.silu_backward(y, x)],
        "aten::tanh_backward": lambda x, y: [aten.tanh_backward(y, x)],
        "aten::threshold_backward": lambda x, y: [aten.threshold_backward(y, x, 0)],
        "aten::add": lambda x, y: [x + y],
        "aten::_softmax": lambda x, y: [aten._softmax(x, -1, False)],
        "aten::_softmax_backward_data": lambda x, y: [
            aten._softmax_backward_data(y, x, -1, torch.float32)
        ],
        "aten::native_layer_norm": lambda x, y: list(
            aten.native_layer_norm(x, [1024], None, None, 1e-5)
        ),
        "aten::sum": lambda x, y: [x.sum(0)],
        "aten::transpose_copy": lambda x, y: [x.t().contiguous()],
    }
    for name, function in functions.items():
        yield name, function, (x, y)


def cases() -> Iterator[Case]:
    for family in (
        convolutions, forward_convolutions, products, pools, norms, embeddings, attention,
        elementwise,
    ):  # fmt: skip
        yield from family()


def cases_of(types: Sequence[torch.dtype]) -> Iterator[tuple[torch.dtype, Case]]:
    """The cases, their tensors in each type."""
    before = torch.get_default_dtype()
    for dtype in types:
        torch.set_default_dtype(dtype)
        try:
            made = list(cases())
        finally:
            torch.set_default_dtype(before)
        yield from ((dtype, case) for case in made)


def compiled(function: Callable[..., Any], args: Sequence[Any], place: Place) -> tuple[Any, float]:
    """The operator in a session, and its work."""
    graph = make_fx(
        torch.func.functionalize(lambda *given: function(*given)), tracing_mode="fake"
    )(*args)
    calls = [n for n in graph.graph.nodes if n.op == "call_function"]
    node = next((n for n in calls if "getitem" not in str(n.target)), None)
    assert node is not None
    options = OrtBackendOptions(intra_op_threads=1, fallback=False, placement={"*": place})
    recipe = Recipe(
        dispatcher=OxsDispatcher(),
        options=options,
        runs_here=True,
        torch_kernels=True,
        select_providers=lambda graph, args: [(CPU, {})],
    )
    return compile_graph(graph, recipe), _work(node)


def _work(node: torch.fx.Node) -> float:
    """Of a gradient of a convolution its multiplications, of others what the table counts."""
    if node.target is not torch.ops.aten.convolution_backward.default:
        return work_of(node)
    arguments: Sequence[Any] = node.args
    gradient, weight = (arguments[i].meta["val"] for i in (0, 2))
    asked = sum(map(bool, arguments[10][:2]))
    return gradient.numel() * weight.numel() / weight.shape[0] * asked


def measure(case: Case, repeat: int, dtype: torch.dtype) -> dict[str, Any]:
    name, function, args = case
    run, work = compiled(function, args, "onnxruntime")
    contenders = {"onnxruntime": lambda: run(list(args)), "torch": lambda: function(*args)}
    if name.split()[0] in KERNEL_TYPES:
        by_torch, _ = compiled(function, args, KERNEL)
        contenders[KERNEL] = lambda: by_torch(list(args))
    spent: dict[str, list[float]] = {c: [] for c in contenders}
    for _ in range(repeat + 1):
        for key, call in contenders.items():
            call()
            start, count = time.process_time(), 0
            while time.process_time() - start < 0.01 or not count:
                call()
                count += 1
            spent[key].append((time.process_time() - start) / count)
    seconds = {c: statistics.median(v[1:]) for c, v in spent.items()}
    return {
        "op": name,
        "type": str(dtype).removeprefix("torch."),
        "shapes": [list(a.shape) for a in args],
        "work": work,
        "us": {c: s * 1e6 for c, s in seconds.items()},
        "ratio": seconds["onnxruntime"] / seconds["torch"],
        "kernel": seconds["onnxruntime"] / seconds[KERNEL] if KERNEL in seconds else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="only operators with one of these in the name")
    parser.add_argument("--types", default="float32", help="float32, bfloat16, float16")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [w for w in arguments.ops.split(",") if w]
    rows = []
    types = [getattr(torch, name) for name in arguments.types.split(",")]
    for dtype, case in cases_of(types):
        name, *_ = case
        if wanted and not any(w in name for w in wanted):
            continue
        if dtype is not torch.float32 and name.split()[0] not in KERNEL_TYPES:
            continue
        row = measure(case, arguments.repeat, dtype)
        rows.append(row)
        kernel = f" kernel x{row['kernel']:6.2f}" if row["kernel"] else ""
        print(
            f"{row['op']:56} {row['us']['onnxruntime']:10.1f} {row['us']['torch']:10.1f} us "
            f"x{row['ratio']:6.2f}{kernel}  work {row['work']:.2g} {row['type']} "
            f"{row['shapes'][0]}",
            flush=True,
        )
    for name, kind in dict.fromkeys((r["op"].split()[0], r["type"]) for r in rows):
        mine = [r for r in rows if (r["op"].split()[0], r["type"]) == (name, kind)]
        if ratios := [r["kernel"] for r in mine if r["kernel"]]:
            print(f"    {name} of {kind}: torch's kernel x{min(ratios):.2f} to x{max(ratios):.2f}")
        if kind == "float32" and min(r["ratio"] for r in mine) > 1.1:
            largest = max(mine, key=lambda r: r["work"])
            ours, theirs = (
                largest["us"][c] * 1e-6 / largest["work"] for c in ("onnxruntime", "torch")
            )
            print(f'    "{name}": Cost(onnxruntime={ours:.2g}, torch={theirs:.2g}),')
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
