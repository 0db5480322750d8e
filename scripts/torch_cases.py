"""Crafted nodes for the operators that kernels of torch and MKL compute, in sessions.

A program of its own, for ``sanitize_kernels.py --torch``: what ends it is told by its end. Each
node must be computed or refused. NOTE: torch is built without sanitizers: a read beyond a tensor
is found where it ends the process.

usage: python scripts/torch_cases.py CASES SEED
"""

from __future__ import annotations

import faulthandler
import json
import logging
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from onnx import helper

from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels.operators import (
    ATTENTION,
    MKL_ATTENTION_GRAD,
    MKL_PRODUCT,
    OWN_DOMAIN,
    TORCH_FLASH,
)
from dort_rewriter.ort_module import bindings
from dort_rewriter.runtime.ort_values import push
from dort_rewriter.runtime.providers import ort_device
from dort_rewriter.runtime.session import create_session, session_options
from dort_rewriter.runtime.threads import ThreadPolicy

sys.path.insert(0, str(Path(__file__).parent))

from kernel_cases import BFLOAT, FLOAT, HALF, MAKERS, Case, Tensor, turned
from kernel_spoilers import draw

LIMIT = 120
"""Seconds for a case, which takes some milliseconds."""

MOST_WORK = 2**26
"""Elements that torch's slow loops make in a second or so."""

_TYPES = {
    FLOAT: torch.float32,
    HALF: torch.float16,
    BFLOAT: torch.bfloat16,
    7: torch.int64,
    9: torch.bool,
    11: torch.float64,
    6: torch.int32,
}


def _type(r: random.Random) -> int:
    return r.choice((FLOAT, FLOAT, HALF, BFLOAT))


def _size(r: random.Random) -> int:
    return r.choice((1, 1, 2, 3, 5, 8, 16, 17, 33, 64, 100))


def _product(r: random.Random, op: str) -> Case:
    batched, added, kind = op in ("bmm", "baddbmm"), "add" in op, _type(r)
    m, k, n, batch = (_size(r) for _ in range(4))
    left, right = [m, k], [k, n]
    if batched:
        left, right = [r.choice((1, batch)), *left], [batch, *right]
    inputs = [Tensor(kind, left), Tensor(kind, right)]
    attributes: dict[str, Any] = {}
    if added:
        inputs.insert(0, Tensor(kind, r.choice(([m, n], [n], [1, n], [m, 1], []))))
        attributes = {"beta": 0.5, "alpha": 2.0}
    elif not batched and r.random() < 0.3:
        attributes["small_by_mkl"] = 1
    return turned(r, Case(op, attributes, inputs, [kind]))


def _mkl_product(r: random.Random, op: str) -> Case:
    m, k, n = (_size(r) for _ in range(3))
    parts = {"terms": r.choice((1, 3, 6)), "constant": r.randint(0, 1), "loops": 1}
    if is_large := r.random() < 0.05:
        m, k, n = 256 + m, 250 + k, 250 + n
    turn = [r.randint(0, 1), r.randint(0, 1)]
    left, right = ([k, m] if turn[0] else [m, k]), ([n, k] if turn[1] else [k, n])
    batch = [_size(r)] if r.random() < 0.4 and not is_large else []
    inputs = [Tensor(FLOAT, batch + left), Tensor(FLOAT, batch + right)]
    if not batch and r.random() < 0.4:
        inputs.append(Tensor(FLOAT, r.choice(([m, n], [n], [1, n], [m, 1], [1]))))
    attributes = {"transA": turn[0], "transB": turn[1], "alpha": 0.5}
    return Case(op, attributes | (parts if is_large else {}), inputs, [FLOAT])


def _convolution(r: random.Random, op: str) -> Case:
    rank, groups, kind = r.randint(1, 3), r.choice((1, 1, 2, 4)), _type(r)
    transposed = int(r.random() < 0.4)
    read, made = (groups * r.choice((1, 2, 4, 16)) for _ in range(2))
    image = [r.randint(1, 3), read, *(r.choice((1, 2, 5, 9, 17)) for _ in range(rank))]
    window = [r.choice((1, 1, 2, 3, 5)) for _ in range(rank)]
    weight = [read, made // groups, *window] if transposed else [made, read // groups, *window]

    def numbers(least: int, *more: int) -> list[int]:
        return [r.choice((least, least, 1, 2, *more)) for _ in range(rank)]

    large = (100, 1024, 2048, 4096, 8192, 16_384) if r.random() < 0.3 else ()
    attributes: dict[str, Any] = {
        "stride": numbers(1, *large),
        "padding": numbers(0, *large),
        "dilation": numbers(1, *large),
        "output_padding": numbers(0) if transposed else [0] * rank,
        "transposed": transposed,
        "groups": groups,
    }
    checks = op.startswith("PaddingLeftOut")
    kind = FLOAT if checks else kind
    inputs = [Tensor(kind, image), Tensor(kind, weight)]
    result = Tensor(kind, [image[0], made, *_windows(image[2:], window, attributes)])
    if op.endswith(("_backward", "Grad")):
        of_weight = [_with_nan(r, weight)] if checks else []
        results = [kind] * (1 if checks else 3)
        return turned(r, Case(op, attributes, [*of_weight, result, *inputs], results))
    inputs += [Tensor(kind, [made])] if r.random() < 0.5 else []
    if checks:
        attributes["relu"] = r.randint(0, 1)
        inputs.insert(0, _with_nan(r, result.dims))
    return turned(r, Case(op, attributes, inputs, [kind]))


def _with_nan(r: random.Random, dims: list[int]) -> Tensor:
    """What another kernel made: all NaN in half of the cases."""
    return Tensor(FLOAT, dims, [math.nan] if r.random() < 0.5 else [])


def _windows(image: list[int], window: list[int], how: dict[str, Any]) -> list[int]:
    sizes = []
    for d, (size, k) in enumerate(zip(image, window, strict=True)):
        stride, padding, reach = how["stride"][d], how["padding"][d], how["dilation"][d] * (k - 1)
        if how["transposed"]:
            found = (size - 1) * stride - 2 * padding + reach + 1 + how["output_padding"][d]
        else:
            found = (size + 2 * padding - reach - 1) // stride + 1
        sizes.append(max(found, 1))
    return sizes


TORCH_MAKERS: dict[str, Callable[[random.Random, str], Case]] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(
        (TORCH_FLASH, f"{TORCH_FLASH}_backward", MKL_ATTENTION_GRAD), MAKERS[ATTENTION]
    ),
    **dict.fromkeys(("convolution", "convolution_backward"), _convolution),
    **dict.fromkeys(("PaddingLeftOut", "PaddingLeftOutGrad"), _convolution),
    MKL_PRODUCT: _mkl_product,
}


def model_of(case: Case) -> onnx.ModelProto:
    """A model of one node."""
    given = [f"x{i}" for i in range(len(case.inputs))]
    made = [f"y{i}" if t else "" for i, t in enumerate(case.results)]
    node = helper.make_node(case.op, given, made, domain=OWN_DOMAIN)
    for name, value in case.attributes.items():
        if value == []:
            attribute = onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)
        else:
            attribute = helper.make_attribute(name, value)
        node.attribute.append(attribute)
    infos = [
        [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, types, strict=True) if t]
        for names, types in ((given, [x.type for x in case.inputs]), (made, case.results))
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(OWN_DOMAIN, 1)]
    graph = helper.make_graph([node], "case", *infos)
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def _is_long(case: Case) -> bool:
    """Whether torch computes it for minutes, which is no fault of its kernel."""
    sizes = [math.prod(x.dims) for x in case.inputs]
    if case.op.startswith(("convolution", "PaddingLeftOut")) and len(case.inputs) > 1:
        image, weight = (x.dims for x in case.inputs[-2:][:2])
        numbers = [v for v in case.attributes.values() if isinstance(v, list)]
        largest = math.prod(max(1, *(abs(n) for n in v)) for v in numbers[:2] if v)
        return math.prod(image) * math.prod(weight) * largest > MOST_WORK
    return math.prod(max(s, 1) for s in sizes[:2]) > 2**40


def compute(case: Case, seed: int, threads: int) -> str:
    """What became of a case."""
    sizes = [d for x in case.inputs for d in x.dims]
    if any(x.type not in _TYPES for x in case.inputs) or max(sizes, default=0) > 2**30:
        return "not run"  # there are no such tensors
    if _is_long(case):
        return "not run"
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(x.dims, generator=generator).to(_TYPES[x.type])
        if not x.content
        else torch.tensor(x.content).expand(x.dims).to(_TYPES[x.type])
        for x in case.inputs
    ]
    options = session_options(
        optimization_level="disable", threads=ThreadPolicy(intra_op_threads=threads)
    )
    try:
        session = create_session(model_of(case), options=options).ort
    except ExecutionError:
        return "refused"
    state = bindings()
    feeds, fetches = state.OrtValueVector(), state.OrtValueVector()
    for tensor in tensors:
        push(feeds, tensor)
    names = [i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()]
    devices = [ort_device(None)] * len(names[1])
    run_options = onnxruntime.RunOptions()
    try:
        session.run_with_ortvaluevector(run_options, names[0], feeds, names[1], fetches, devices)
    except Exception as error:  # counted, and told at the end
        return "refused" if type(error).__module__.startswith("onnxruntime") else repr(error)
    for value in fetches:
        torch.from_dlpack(value.to_dlpack()).clone()
    return "computed"


def main(cases: int, seed: int) -> Counter[str]:
    """Count what became of cases, by operator."""
    logging.disable()
    counts: Counter[str] = Counter()
    operators = list(TORCH_MAKERS)
    for number in range(cases):
        r = random.Random(f"{seed} {number}")
        case = draw(r, operators[number % len(operators)], TORCH_MAKERS)
        print(f"{number} {case}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        counts[f"{case.op} {compute(case, number, r.choice((1, 2)))}"] += 1
        faulthandler.cancel_dump_traceback_later()
    return counts


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))), flush=True)
