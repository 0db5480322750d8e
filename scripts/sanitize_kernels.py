"""Crafted nodes for the operators of our own, computed under the address and UB sanitizers.

``sanitize_kernels.cpp`` stands for ONNX Runtime: it gives each tensor memory of exactly its size.
Cases are drawn at random: as exporters write them, or with attributes, sizes, types, numbers of
inputs and integers replaced by what nobody would write. Each must be computed or refused: what a
sanitizer finds, work without end and memory without limit end the run, with the case that did it.

    python scripts/sanitize_kernels.py --cases 20000 --seed 1
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sanitize_cases import (  # beside this file
    DOUBLE,
    FLOAT,
    FLOATS,
    HALF,
    INT64,
    TYPES,
    Case,
    Tensor,
    draw_dims,
    draw_part,
    elementwise,
    elementwise_list,
    integers,
    write_rows,
)

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "dort_rewriter" / "runtime" / "kernels_cpp"
FLAGS = [
    *("-std=c++17", "-O1", "-g", "-pthread", "-ffp-contract=off", "-D_GLIBCXX_ASSERTIONS"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
]
SETTINGS = {"ASAN_OPTIONS": "max_allocation_size_mb=1024:detect_leaks=1"}

EDGES = (-(2**63), -(2**31), -21, -2, -1, 0, 1, 2, 3, 13, 2**24, 2**31, 2**40, 2**62, 2**63 - 1)
"""Integers at which arithmetic goes wrong."""


def _rotary(r: random.Random, op: str) -> Case:
    dims, dtype = [*draw_dims(r), 2 * r.randint(1, 9)], r.choice(FLOATS)
    others = [[*draw_part(r, dims[:-1]), dims[-1]] for _ in range(2)]
    inputs = [Tensor(dtype, d) for d in (dims, *others)]
    return Case(op, {"gradient": r.randint(0, 1)}, inputs, [dtype])


def _scatter(r: random.Random, op: str) -> Case:
    shape, dtype = draw_dims(r, 1), r.choice(FLOATS)
    depth, places = r.randint(0, len(shape)), r.randint(0, 9)
    index = [r.randint(-d, d - 1) if d else 0 for _ in range(places) for d in shape[:depth]]
    updates = Tensor(dtype, [places, *shape[depth:]])
    attributes: dict[str, int | float | list[int]] = {"add": r.randint(0, 1)}
    if r.random() < 0.3:
        attributes |= {"masked": 1, "skip": -100}
    inputs = [integers(shape), Tensor(INT64, [places, depth], index), updates]
    return Case(op, attributes, inputs, [dtype])


def _windows(r: random.Random) -> list[int]:
    numbers = []
    for _ in range(2):
        kernel, dilation = r.randint(1, 4), r.randint(1, 3)
        padding = r.randint(0, (dilation * (kernel - 1) + 1) // 2)
        numbers += [kernel, r.randint(1, 3), padding, dilation, r.randint(0, 1)]
    return numbers


def _count(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: int) -> int:
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    windows = (room + (stride - 1 if ceil else 0)) // stride + 1
    return max(0, windows - int(bool(ceil) and (windows - 1) * stride >= size + padding))


def _pooled(r: random.Random, op: str) -> Case:
    dims = [*draw_dims(r, 0, 2), r.randint(8, 40), r.randint(8, 40)]
    windows = _windows(r)
    counted = [_count(d, *windows[i : i + 5]) for d, i in zip(dims[-2:], (0, 5), strict=True)]
    shape = [*dims[:-2], *counted]
    if op == "MaxPool":
        return Case(
            op, {"windows": windows}, [Tensor(FLOAT, dims)], [FLOAT, INT64][: r.choice((1, 2))]
        )
    places = [r.randint(-1, 70) for _ in range(math.prod(shape))]
    inputs = [Tensor(FLOAT, shape), Tensor(INT64, shape, places), integers(dims)]
    return Case(op, {}, inputs, [FLOAT])


def _columns(r: random.Random, op: str) -> Case:
    dims = [r.randint(0, 3), r.randint(1, 3), r.randint(8, 20), r.randint(8, 20)]
    windows = _windows(r)
    windows[4] = windows[9] = 0
    if op == "Columns":
        return Case(op, {"windows": windows}, [Tensor(FLOAT, dims)], [FLOAT])
    area = _count(dims[2], *windows[:5]) * _count(dims[3], *windows[5:])
    given = Tensor(FLOAT, [dims[1] * windows[0] * windows[5], dims[0] * area])
    return Case(op, {"windows": windows}, [given, integers(dims)], [FLOAT])


def _batch_norm(r: random.Random, op: str) -> Case:
    dims = draw_dims(r, 2)
    x, each = Tensor(FLOAT, dims), Tensor(FLOAT, [dims[1]])
    if op == "BatchNorm":
        return Case(op, {"epsilon": 0.5}, [x, each, each], [FLOAT] * 4)
    results = [FLOAT] * r.choice((2, 3))
    return Case(op, {"training": r.randint(0, 1)}, [x, x, each, each, each], results)


def _layer_norm(r: random.Random, op: str) -> Case:
    dims = draw_dims(r, 1)
    axes = r.randint(1, len(dims))
    x, inner = Tensor(FLOAT, dims), Tensor(FLOAT, dims[-axes:])
    rows = Tensor(FLOAT, [*dims[:-axes], *[1] * axes])
    if op == "LayerNorm":
        return Case(op, {"axes": axes, "epsilon": 0.5}, [x, inner, inner], [FLOAT] * 3)
    return Case(op, {"axes": axes}, [x, x, rows, rows, inner], [FLOAT] * r.choice((2, 3)))


def _sum(r: random.Random, op: str) -> Case:
    dims = draw_dims(r)
    leading = r.randint(0, len(dims))
    trailing = r.randint(0, len(dims) - leading)
    flags = {"keepdims": r.randint(0, 1), "mean": r.randint(0, 1)}
    attributes = {"leading": leading, "trailing": trailing, **flags}
    return Case(op, {**attributes}, [Tensor(FLOAT, dims)], [FLOAT])


def _rows(r: random.Random, op: str) -> Case:
    dims = draw_dims(r, 1)
    if op == "Order":  # long rows too: few of many are chosen in another way
        long = Tensor(r.choice((FLOAT, DOUBLE, INT64)), [*dims[:2], dims[-1] * r.choice((1, 9))])
        flags = {name: r.randint(0, 1) for name in ("largest", "select", "sorted")}
        return Case(op, {**flags}, [long, integers([r.randint(0, dims[-1])])], [INT64])
    x, rows = Tensor(FLOAT, dims), Tensor(FLOAT, dims[:-1])
    if op == "RmsNormGrad":
        return Case(op, {}, [x, x, rows, Tensor(FLOAT, dims[-1:])], [FLOAT])
    if op == "CrossEntropyGrad":
        most = max(dims[-1], 1)
        places = [r.randint(-most, most - 1) for _ in range(math.prod(dims[:-1]))]
        return Case(op, {}, [x, Tensor(INT64, dims[:-1], places), rows], [FLOAT])
    return Case(op, {"log" if op[0] == "S" else "tanh": r.randint(0, 1)}, [x, x], [FLOAT])


def _transpose(r: random.Random, op: str) -> Case:
    dims = draw_dims(r, 1)
    given, made = (HALF, FLOAT) if op == "TransposeToFloat" else (FLOAT, HALF)
    perm = r.sample(range(len(dims)), len(dims))
    return Case(op, {"perm": perm}, [Tensor(given, dims)], [made])


def _tri_matrix(r: random.Random, op: str) -> Case:
    dtype = r.choice(FLOATS)
    sizes = [Tensor(INT64, [1], [r.randint(0, 40)]) for _ in range(2)]
    values = [Tensor(dtype, draw_part(r, [1, 1])) for _ in range(3)]
    attributes = {"rank": r.randint(2, 5), "diagonal": r.randint(-50, 50)}
    return Case(op, {**attributes}, [*sizes, *values], [dtype])


MAKERS: dict[str, Callable[[random.Random, str], Case]] = {
    **dict.fromkeys(("Elementwise", "MaskedElementwise", "TransposedElementwise"), elementwise),
    "ElementwiseList": elementwise_list,
    "WriteRows": write_rows,
    "Rotary": _rotary,
    "ScatterZeros": _scatter,
    **dict.fromkeys(("MaxPool", "MaxPoolGrad"), _pooled),
    **dict.fromkeys(("Columns", "ColumnsGrad"), _columns),
    **dict.fromkeys(("BatchNorm", "BatchNormGrad"), _batch_norm),
    **dict.fromkeys(("LayerNorm", "LayerNormGrad"), _layer_norm),
    "Sum": _sum,
    **dict.fromkeys(("SoftmaxGrad", "GeluGrad", "CrossEntropyGrad", "RmsNormGrad"), _rows),
    **dict.fromkeys(("TransposeToFloat", "TransposeToFloat16"), _transpose),
    "TriMatrix": _tri_matrix,
    "Order": _rows,
}


def _other(r: random.Random, value: int) -> int:
    other = r.choice((r.choice(EDGES), value + 1, value - 1, -value, value * 2))
    return min(max(other, EDGES[0]), EDGES[-1])


def _spoil_attribute(r: random.Random, case: Case) -> None:
    if not case.attributes:
        return
    name = r.choice(list(case.attributes))
    value = case.attributes[name]
    if r.random() < 0.1:
        del case.attributes[name]
    elif isinstance(value, list):
        place = r.randint(0, len(value))
        if place < len(value) and r.random() < 0.8:
            value[place] = _other(r, value[place])
        else:
            value[place : place + r.randint(0, 1)] = [r.choice(EDGES)] * r.choice((0, 1, 5))
    elif isinstance(value, int):
        case.attributes[name] = _other(r, value)


def _spoil_sizes(r: random.Random, case: Case) -> None:
    """Change a size of one input, or of all that have it."""
    some = r.choice(case.inputs)
    if not some.dims or r.random() < 0.1:
        some.dims = [*some.dims, *[1] * r.choice((1, 2, 12))]
        return
    old, new = r.choice(some.dims), r.choice((0, 1, 2, 3, 16, 2**31, 2**40, 2**62))
    for x in case.inputs if r.random() < 0.5 else [some]:
        x.dims = [new if d == old else d for d in x.dims]
        if r.random() < 0.1:
            x.dims.pop(r.randrange(len(x.dims))) if x.dims else None


def _spoil_content(r: random.Random, case: Case) -> None:
    """Change what an input of integers holds."""
    given = [x for x in case.inputs if x.content]
    if given:
        content = r.choice(given).content
        place = r.randrange(len(content))
        content[place] = _other(r, content[place])


def _spoil_signature(r: random.Random, case: Case) -> None:
    """Change the types or the number of inputs or results."""
    inputs, results = case.inputs, case.results
    what = r.randint(0, 5)
    if what == 0:
        r.choice(inputs).type = r.choice(TYPES)
    elif what == 1:
        results[r.randrange(len(results))] = r.choice(TYPES)
    elif what == 2 and len(inputs) > 1:
        inputs.pop(r.randrange(len(inputs)))
    elif what == 3:
        inputs += [dataclasses.replace(r.choice(inputs)) for _ in range(r.choice((1, 2, 20)))]
    elif what == 4 and len(results) > 1:
        results.pop()
    else:
        results += [r.choice(results)] * r.choice((1, 20))


SPOILERS = (_spoil_attribute, _spoil_sizes, _spoil_content, _spoil_signature)
MOST_ELEMENTS = 2**20


def draw(r: random.Random, op: str) -> Case:
    """A case: half of them are spoiled, in one way or several."""
    case = MAKERS[op](r, op)
    case.inputs = [Tensor(x.type, list(x.dims), list(x.content)) for x in case.inputs]
    if r.random() < 0.5:
        for spoil in r.choices(SPOILERS, (4, 2, 2, 1), k=r.randint(1, 3)):
            spoil(r, case)
    for x in case.inputs:  # sizes that have no memory here can only be those of nothing
        if math.prod(x.dims) > MOST_ELEMENTS:
            x.dims.insert(r.randint(0, len(x.dims)), 0)
        x.content = x.content[: math.prod(x.dims)] if x.type == INT64 else []
    return case


def build(compiler: str, flags: Sequence[str], target: Path) -> None:
    """Compile the operators with the sanitizers, around what stands for ONNX Runtime."""
    source = HERE / "sanitize_kernels.cpp"
    command = [compiler, *FLAGS, *flags, f"-I{SOURCES}", str(source), "-o", str(target)]
    subprocess.run(command, check=True)


def sanitize(program: Path, lines: Iterator[tuple[str, str]]) -> Counter[str]:
    """Count the answers to cases by operator; an exception for what is found."""
    answers: Counter[str] = Counter()
    with subprocess.Popen(
        [program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **SETTINGS},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for op, line in lines:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                raise AssertionError(f"{op}: the program ended at this case:\n{line}")
            answers[f"{op} {answer.partition(':')[0].strip()}"] += 1
        process.stdin.close()
        if process.wait() != 0:
            raise AssertionError("memory was not given back")
    return answers


def draw_all(cases: int, seed: int, only: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the operator and the line of each case."""
    for number in range(cases):
        r = random.Random(f"{seed} {number}")
        op = only[number % len(only)]
        yield op, draw(r, op).line(r.randrange(2**31))


def main() -> int:
    """Compile, feed, and print the answers by operator as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(MAKERS), help="operators, by name")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument(
        "--flags", default="-march=native", help="for the processor; '' for a portable library"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "sanitized")
        build(options.compiler, options.flags.split(), program)
        try:
            lines = draw_all(options.cases, options.seed, options.only.split(","))
            answers = sanitize(program, lines)
        except AssertionError as found:
            print(found, file=sys.stderr)
            return 1
    print(json.dumps(dict(sorted(answers.items())), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
