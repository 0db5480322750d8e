"""ONNX graphs at random, for the rules and the kernels of this package.

``python -m tests.optimize.random_graphs --count 5000 --seed 0`` runs more of them than the tests
do, and prints the seeds of those whose numbers change, with a model made as small as it goes.

One half are graphs of 4 to 24 nodes over tensors of rank 0 to 6 and sizes of 0, 1 and more; the
other half are the models of the tests of the rules with something changed: a size, a number, a
type, an attribute, one more reader or output. Those that onnxruntime does not run as they are do
not count.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from dort_rewriter.errors import OptimizeError
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import SIZES, make_session, random_inputs, run_onnxruntime

__all__ = ["SELECTIONS", "failure", "generate", "shrink"]

SELECTIONS = (
    "default",
    "default+onnxruntime",
    "default+onnxruntime+kernels",
    "default+onnxruntime+experimental",
)
_TOLERANCE = {np.dtype("float32"): 2e-5, np.dtype("float16"): 8e-3, np.dtype("float64"): 1e-6}
"""Of the largest number of a result: some hundred roundings, fewer of float16, which is computed
in float32 here and there. The kernels of float64 are allowed constants of float32."""
_SYMBOLS = {size: name for name, size in SIZES.items()}
Value = tuple[str, int, tuple[int, ...]]
"""Name, element type, shape."""

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.DOUBLE,
           TensorProto.FLOAT16)  # fmt: skip
_UNARY = "Abs Neg Relu Sigmoid Tanh Erf Exp Identity Sqrt Reciprocal Log Softplus".split()
_BINARY = "Add Sub Mul Div Max Min".split()
_COMPARISONS = "Less LessOrEqual Greater GreaterOrEqual Equal".split()


class Builder:
    """A graph that grows by one node at a time, each of a known shape."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.dtype = self.random.choice(_FLOATS)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.constants: list[onnx.TensorProto] = []
        rank = self.random.choice([0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6])
        self.shape = tuple(self.size() for _ in range(rank))

    def size(self) -> int:
        return self.random.choice([1, 2, 3, 3, 4, 5, 5, 8] + [0] * (self.random.random() < 0.04))

    def related(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to another."""
        kept = shape[self.random.choice([0, 0, 0, self.random.randint(0, len(shape))]) :]
        return tuple(1 if self.random.random() < 0.2 else d for d in kept)

    def input(self, dtype: int, shape: tuple[int, ...]) -> Value:
        value = (f"x{len(self.inputs)}", dtype, shape)
        self.inputs.append(value)
        return value

    def constant(self, array: Any, dtype: int) -> str:
        name = f"c{len(self.constants)}"
        array = np.asarray(array).astype(helper.tensor_dtype_to_np_dtype(dtype))
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, numbers: Any) -> str:
        return self.constant(np.asarray(numbers, np.int64), TensorProto.INT64)

    def add(
        self, op: str, read: list[str], dtype: int, shape: Any, count: int = 1, **attributes: Any
    ) -> Value:
        names = [f"v{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op, read, names, **attributes))
        found = [(name, dtype, tuple(shape)) for name in names]
        self.values += found
        return found[0]

    def numbers(self, shape: tuple[int, ...] | None = None) -> Value:
        """A value to compute with: mostly one of the last, so that chains get long."""
        found = [v for v in self.values if v[1] == self.dtype and shape in (None, v[2])]
        if found and self.random.random() < 0.85:
            return self.random.choice(found[-3:] if self.random.random() < 0.7 else found)
        return self.input(self.dtype, self.related(self.shape) if shape is None else shape)

    def beside(self, shape: tuple[int, ...]) -> str:
        """What is computed with a value of a shape: another, or a number."""
        if self.random.random() < 0.3:
            number = self.random.choice([0, 1, 2, 0.5, -1, 3, 1e-6, 0.044715])
            ones = (1,) * self.random.choice([0, 0, 0, 1, min(len(shape), 2)])
            return self.constant(np.full(ones, number), self.dtype)
        fits = [v for v in self.values + self.inputs if v[1] == self.dtype and _fits(v[2], shape)]
        if fits and self.random.random() < 0.7:
            return self.random.choice(fits)[0]
        return self.input(self.dtype, self.related(shape))[0]

    def mask(self, shape: tuple[int, ...]) -> Value:
        """Truth values that do not hang on how something is rounded."""
        found = [v for v in self.values if v[1] == TensorProto.BOOL and _fits(v[2], shape)]
        if found and self.random.random() < 0.7:
            return self.random.choice(found)
        if self.random.random() < 0.4:
            return self.input(TensorProto.BOOL, self.related(shape))
        a = self.input(self.dtype, self.related(shape))
        b = self.constant(self.random.choice([0, 1, -1]), self.dtype)
        return self.add(self.random.choice(_COMPARISONS), [a[0], b], TensorProto.BOOL, a[2])


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, whole) == whole
    except ValueError:
        return False


def _unary(g: Builder) -> None:
    x = g.numbers()
    op = g.random.choice(_UNARY)
    if op in ("Sqrt", "Reciprocal", "Log"):  # of numbers that are not near zero
        x = g.add("Abs", [x[0]], x[1], x[2])
        x = g.add("Add", [x[0], g.constant(0.5, g.dtype)], x[1], x[2])
    if op == "Exp":
        x = g.add("Tanh", [x[0]], x[1], x[2])
    g.add(op, [x[0]], x[1], x[2])


def _binary(g: Builder) -> None:
    x = g.numbers()
    op, other = g.random.choice(_BINARY), g.beside(x[2])
    if op == "Div":
        other = g.constant(g.random.choice([2, 4, 3, 0.5]), g.dtype)
    read = [x[0], other]
    g.add(op, read if op == "Div" or g.random.random() < 0.5 else read[::-1], x[1], x[2])


def _power(g: Builder) -> None:
    x = g.numbers()
    x = g.add("Tanh", [x[0]], x[1], x[2])
    g.add("Pow", [x[0], g.constant(g.random.choice([1, 2, 3, 4]), g.dtype)], x[1], x[2])


def _where(g: Builder) -> None:
    x = g.numbers()
    m = g.mask(x[2])
    if g.random.random() < 0.3:
        m = g.add("Not", [m[0]], m[1], m[2])
    if g.random.random() < 0.6:
        n = g.mask(m[2])
        m = g.add(g.random.choice(["And", "Or", "Xor"]), [m[0], n[0]], m[1], m[2])
    read = [x[0], g.beside(x[2])]
    g.random.shuffle(read)
    g.add("Where", [m[0], *read], x[1], x[2])


def _cast(g: Builder) -> None:
    m = g.mask(g.shape)
    g.add("Cast", [m[0]], g.dtype, m[2], to=g.dtype)


def _cast_back(g: Builder) -> None:
    x = g.numbers()
    other = g.random.choice([t for t in set(_FLOATS) if t != g.dtype])
    y = g.add("Cast", [x[0]], other, x[2], to=other)
    g.add("Cast", [y[0]], g.dtype, x[2], to=g.dtype)


def _reshape(g: Builder) -> None:
    x = g.numbers()
    count, dims = int(np.prod(x[2])), list(x[2])
    kind = g.random.choice(["flat", "one", "merge", "split", "back"])
    if kind == "flat":
        dims = [count]
    elif kind == "one":
        dims.insert(g.random.randint(0, len(dims)), 1)
    elif kind == "merge" and len(dims) > 1:
        at = g.random.randrange(len(dims) - 1)
        dims[at : at + 2] = [dims[at] * dims[at + 1]]
    elif kind == "split":
        at = next((i for i, d in enumerate(dims) if d in (4, 6, 8)), None)
        if at is not None:
            dims[at : at + 1] = [2, dims[at] // 2]
    elif int(np.prod(g.shape)) == count:
        dims = list(g.shape)
    if 0 not in dims and len(dims) < 7:
        g.add("Reshape", [x[0], g.ints(dims)], x[1], dims)


def _unsqueeze(g: Builder) -> None:
    x = g.numbers()
    if len(x[2]) < 6:
        at = g.random.randint(0, len(x[2]))
        shape = (*x[2][:at], 1, *x[2][at:])
        g.add("Unsqueeze", [x[0], g.ints([at])], x[1], shape)


def _squeeze(g: Builder) -> None:
    x = g.numbers()
    ones = [i for i, d in enumerate(x[2]) if d == 1]
    if ones:
        at = g.random.choice(ones)
        g.add("Squeeze", [x[0], g.ints([at])], x[1], (*x[2][:at], *x[2][at + 1 :]))


def _transpose(g: Builder) -> None:
    x = g.numbers()
    perm = list(range(len(x[2])))
    if len(perm) > 1:
        i, j = g.random.sample(perm, 2)
        perm[i], perm[j] = perm[j], perm[i]
        g.add("Transpose", [x[0]], x[1], [x[2][i] for i in perm], perm=perm)


def _expand(g: Builder) -> None:
    x = g.numbers()
    shape = tuple(3 if d == 1 and g.random.random() < 0.5 else d for d in x[2])
    if len(shape) < 6 and g.random.random() < 0.3:
        shape = (2, *shape)
    g.add("Expand", [x[0], g.ints(shape)], x[1], shape)


def _concat(g: Builder) -> None:
    x = g.numbers()
    if x[2]:
        axis = g.random.randrange(len(x[2]))
        y = g.numbers(x[2])
        shape = [*x[2][:axis], 2 * x[2][axis], *x[2][axis + 1 :]]
        g.add("Concat", [x[0], y[0]], x[1], shape, axis=axis - g.random.choice([0, len(x[2])]))


def _slice(g: Builder) -> None:
    x = g.numbers()
    if x[2]:
        axis = g.random.randrange(len(x[2]))
        size = x[2][axis]
        cut = g.random.randint(0, size)
        for begin, end in ((0, cut), (cut, size))[: g.random.choice([1, 2])]:
            bounds = [g.ints([n]) for n in (begin, end, axis, 1)]
            g.add("Slice", [x[0], *bounds], x[1],
                  (*x[2][:axis], end - begin, *x[2][axis + 1 :]))  # fmt: skip


def _reduce(g: Builder) -> None:
    x = g.numbers()
    if x[2] and 0 not in x[2]:
        axes = sorted(g.random.sample(range(len(x[2])), g.random.randint(1, len(x[2]))))
        keep = g.random.choice([0, 1, 1])
        shape = [1 if i in axes else d for i, d in enumerate(x[2]) if keep or i not in axes]
        op = g.random.choice(["ReduceSum", "ReduceMean", "ReduceMax"])
        g.add(op, [x[0], g.ints(axes)], x[1], shape, keepdims=keep)


def _product(g: Builder) -> None:
    x = g.numbers()
    if len(x[2]) > 1 and 0 not in x[2]:
        inner = x[2][-1]
        shape = (inner, 4) if g.random.random() < 0.6 else (*x[2][:-2], inner, 4)
        turned = g.random.random() < 0.4
        if turned:
            perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            y = g.input(g.dtype, (*shape[:-2], shape[-1], shape[-2]))
            y = g.add("Transpose", [y[0]], y[1], shape, perm=perm)
        else:
            y = g.numbers(shape)
        g.add("MatMul", [x[0], y[0]], x[1], (*x[2][:-1], 4))


def _softmax(g: Builder) -> None:
    x = g.numbers()
    if x[2]:
        g.add("Softmax", [x[0]], x[1], x[2], axis=g.random.randrange(len(x[2])))


_STEPS: tuple[tuple[Callable[[Builder], None], int], ...] = (
    (_unary, 8), (_binary, 12), (_power, 2), (_where, 6), (_cast, 2), (_cast_back, 1),
    (_reshape, 7), (_unsqueeze, 3), (_squeeze, 3), (_transpose, 4), (_expand, 3), (_concat, 2),
    (_slice, 3), (_reduce, 4), (_product, 2), (_softmax, 1),
)  # fmt: skip


def random_graph(seed: int) -> onnx.ModelProto:
    """A graph of random nodes, some results of which the model returns."""
    g = Builder(seed)
    g.values.append(g.input(g.dtype, g.shape))
    steps, weights = zip(*_STEPS, strict=True)
    wanted = g.random.randint(4, 24)
    for _ in range(200):
        g.random.choices(steps, weights)[0](g)
        if len(g.nodes) >= wanted:
            break
    read = {name for node in g.nodes for name in node.input}
    made = [v for v in g.values if v[0].startswith("v")]
    results = [v for v in made if v[0] not in read or g.random.random() < 0.15]
    symbols = g.random.random() < 0.3
    return _model(
        g.nodes, [_describe(v, symbols) for v in g.inputs], [_describe(v) for v in results],
        g.constants,
    )  # fmt: skip


def _describe(value: Value, symbols: bool = False) -> onnx.ValueInfoProto:
    name, dtype, shape = value
    sizes = [_SYMBOLS.get(d, d) if symbols and d in (3, 5) else d for d in shape]
    return helper.make_tensor_value_info(name, dtype, sizes)


def _model(
    nodes: Any, inputs: Any, outputs: Any, constants: Any, opset: int = 18
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "random", inputs, outputs, constants)
    domains = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


@functools.cache
def _texts() -> list[str]:
    """The models of the tests of the rules, as text."""
    found: dict[str, None] = {}
    folder = Path(__file__).parent / "patterns"
    for path in sorted(folder.glob("*/test_*.py")):
        module = importlib.import_module(f"tests.optimize.patterns.{path.parent.name}.{path.stem}")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                found.update(dict.fromkeys(_evaluate(node, vars(module))))
    return list(found)


def _evaluate(node: ast.expr, names: dict[str, Any]) -> Iterator[str]:
    try:
        text = eval(compile(ast.Expression(node), "test", "eval"), dict(names))
    except Exception:  # it stands on what a test computes
        return
    if isinstance(text, str) and text.lstrip().startswith("(") and "=>" in text:
        yield text


def mutant(seed: int) -> onnx.ModelProto | None:
    """The model of a test with one to three things changed; None when it cannot be read."""
    chosen = random.Random(seed)
    header = '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1, "dort_rewriter": 1]>'
    try:
        model = onnx.parser.parse_model(f"{header} test {chosen.choice(_texts())}")
    except onnx.parser.ParseError:
        return None
    if any(node.op_type == "Dropout" for node in model.graph.node):
        return None  # its numbers are drawn anew each time
    for _ in range(chosen.randint(1, 3)):
        chosen.choice(_MUTATIONS)(model.graph, chosen)
    return model


def _change_size(graph: onnx.GraphProto, chosen: random.Random) -> None:
    dims = [d for v in graph.input for d in v.type.tensor_type.shape.dim if d.dim_value]
    if dims:
        old, new = chosen.choice(dims).dim_value, chosen.choice([1, 1, 2, 3, 8, 0])
        everywhere = chosen.random() < 0.7
        for dim in dims if everywhere else [chosen.choice(dims)]:
            if dim.dim_value == old:
                dim.dim_value = new


def _change_rank(graph: onnx.GraphProto, chosen: random.Random) -> None:
    shape = chosen.choice(graph.input).type.tensor_type.shape
    dims = list(shape.dim)
    del shape.dim[:]
    if chosen.random() < 0.5:
        shape.dim.add().dim_value = chosen.choice([1, 2])
        shape.dim.extend(dims)
    else:
        shape.dim.extend(dims[1:])


def _change_type(graph: onnx.GraphProto, chosen: random.Random) -> None:
    old, new = TensorProto.FLOAT, chosen.choice([TensorProto.DOUBLE, TensorProto.FLOAT16])
    for value in [*graph.input, *graph.output]:
        if value.type.tensor_type.elem_type == old:
            value.type.tensor_type.elem_type = new
    for tensor in graph.initializer:
        if tensor.data_type == old:
            array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(new))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _change_number(graph: onnx.GraphProto, chosen: random.Random) -> None:
    if graph.initializer:
        tensor = chosen.choice(graph.initializer)
        array = numpy_helper.to_array(tensor).copy()
        if array.size and array.dtype.kind in "if":
            at = chosen.randrange(array.size)
            array.ravel()[at] = chosen.choice([0, 1, -1, 2, array.ravel()[at] + 1])
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _change_attribute(graph: onnx.GraphProto, chosen: random.Random) -> None:
    found = [a for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.INT]
    if found:
        attribute = chosen.choice(found)
        attribute.i = chosen.choice([0, 1, -1, attribute.i + 1])


def _change_operator(graph: onnx.GraphProto, chosen: random.Random) -> None:
    node = chosen.choice(graph.node)
    for family in (_UNARY, _BINARY, _COMPARISONS, ["And", "Or", "Xor"]):
        if node.op_type in family and not node.domain:
            node.op_type = chosen.choice(family)


def _swap(graph: onnx.GraphProto, chosen: random.Random) -> None:
    node = chosen.choice(graph.node)
    if len(node.input) > 1:
        i, j = chosen.sample(range(len(node.input)), 2)
        node.input[i], node.input[j] = node.input[j], node.input[i]


def _read_another(graph: onnx.GraphProto, chosen: random.Random) -> None:
    at = chosen.randrange(len(graph.node))
    names = [v.name for v in graph.input] + [n for node in graph.node[:at] for n in node.output]
    node = graph.node[at]
    if node.input and names:
        node.input[chosen.randrange(len(node.input))] = chosen.choice(names)


def _return_more(graph: onnx.GraphProto, chosen: random.Random) -> None:
    returned = {v.name for v in graph.output}
    names = [n for node in graph.node for n in node.output if n and n not in returned]
    if names:
        name = chosen.choice(names)
        if chosen.random() < 0.5:
            graph.node.append(helper.make_node("Identity", [name], [f"{name}_read"]))
            name = f"{name}_read"
        graph.output.append(onnx.ValueInfoProto(name=name))


_MUTATIONS = (
    _change_size, _change_size, _change_rank, _change_type, _change_number, _change_number,
    _change_attribute, _change_operator, _swap, _read_another, _return_more, _return_more,
)  # fmt: skip


def generate(seed: int) -> onnx.ModelProto | None:
    """The model of a seed, shapes inferred; None when ONNX refuses it."""
    model = random_graph(seed) if seed % 2 else mutant(seed)
    return None if model is None else completed(model)


def completed(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A model with the types and shapes that ONNX infers; None when it refuses it."""
    for value in model.graph.output:  # what a test said of its outputs may have changed
        if value.type.tensor_type.elem_type and value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.ClearField("shape")
    try:
        found = onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=True
        )
        onnx.checker.check_model(found)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError):
        return None
    return found


def failure(model: onnx.ModelProto) -> str | None:
    """What goes wrong when rules are applied to a model; "" when it does not run before
    them; None when the numbers stay."""
    feeds = random_inputs(model)
    with np.errstate(all="ignore"):
        try:
            expected = run_onnxruntime(model, feeds)
        except Exception:  # onnxruntime has no class for what it refuses
            return ""
        for selection in SELECTIONS[:3]:  # the fourth adds nothing to the third
            if (found := _difference(model, selection, feeds, expected)) is not None:
                return f"{selection}: {found}"
    return None


def _difference(model: onnx.ModelProto, selection: str, feeds: Any, expected: Any) -> str | None:
    changed = ir.from_proto(model)
    options = OptimizationOptions(patterns=selection, check_rules=True)
    try:
        optimize(changed, options, has_kernel=kernel_query(), make_session=make_session)
        results = run_onnxruntime(ir.to_proto(changed), feeds)
    except OptimizeError as error:
        return str(error)
    except Exception as error:  # whatever it is, a rule made the model raise it
        return f"{type(error).__name__}: {error}"
    for value, got, wanted in zip(model.graph.output, results, expected, strict=True):
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return f"{value.name} is {got.dtype}{got.shape}, not {wanted.dtype}{wanted.shape}"
        finite = np.abs(wanted[np.isfinite(wanted)].astype(np.float64)) if wanted.size else wanted
        atol = _TOLERANCE.get(wanted.dtype, 0.0) * max(1.0, float(np.max(finite, initial=0.0)))
        if not np.allclose(got, wanted, rtol=atol and 1e-3, atol=atol, equal_nan=True):
            return f"{value.name} is {got.ravel()[:8]}, not {wanted.ravel()[:8]}"
    return None


def shrink(model: onnx.ModelProto) -> onnx.ModelProto:
    """A smaller model that fails too: fewer outputs, nodes turned into inputs."""
    for candidate in _smaller(model):
        if (found := completed(candidate)) is not None and failure(found):
            return shrink(found)
    return model


def _smaller(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    graph, opset = model.graph, model.opset_import[0].version
    known = {v.name: v for v in [*graph.value_info, *graph.output]}
    parts = [list(graph.node), list(graph.input), list(graph.output), list(graph.initializer)]
    if len(graph.output) > 1:
        for kept in graph.output:
            yield _pruned(parts[0], parts[1], [kept], parts[3], opset)
    for node in graph.node:
        rest = [n for n in graph.node if n is not node]
        read = {name for n in rest for name in n.input}
        given = [known[name] for name in node.output if name in read and name in known]
        results = [v for v in graph.output if v.name not in node.output]
        if not results:
            results = [known[n] for n in node.input if n in known]
        if results:
            yield _pruned(rest, [*parts[1], *given], results, parts[3], opset)


def _pruned(nodes: Any, inputs: Any, outputs: Any, constants: Any, opset: int) -> onnx.ModelProto:
    needed = {v.name for v in outputs}
    kept = []
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.append(node)
            needed.update(node.input)
    inputs = [v for v in inputs if v.name in needed]
    constants = [t for t in constants if t.name in needed]
    return _model(kept[::-1], inputs, outputs, constants, opset)


def main() -> int:
    """Run the seeds that are asked for, and return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    settings = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)  # what it refuses does not count
    failed = ran = 0
    for seed in range(settings.seed, settings.seed + settings.count):
        model = generate(seed)
        found = "" if model is None else failure(model)
        ran += found != ""
        if model is not None and found:
            failed += 1
            small = shrink(model)
            text = onnx.printer.to_text(small)
            print(f"seed {seed}: {failure(small) or found}\n{text}\n", flush=True)
    print(f"{failed} of {ran} graphs failed, {settings.count - ran} seeds made none that runs")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
