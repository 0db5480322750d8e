"""Write which types torch's operators take: ``dort_rewriter/capture/taken_types.txt``.

Samples of torch's ``op_db`` and ``module_db`` that eager mode takes, forward and backward, are
traced by AOTAutograd; what it records is taken. Made of what the oldest and the newest torch that
is tested take, each in its own environment:

    python scripts/taken_types.py --write old.txt
    python scripts/taken_types.py --write new.txt
    python scripts/taken_types.py --join old.txt new.txt

float16 is left out of it: older kernels have less of it, and the package asks torch.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from dort_rewriter.backends.onnxrt_graphs import make_dispatcher
from dort_rewriter.capture import taken_types
from dort_rewriter.capture.tracing import keep_resizing
from dort_rewriter.export.decompositions import get_tracing_table

TABLE = Path(taken_types.__file__).with_suffix(".txt")
TYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32),
    *(torch.uint8, torch.bool, torch.complex64),
)

Case = tuple[Callable[..., Any], Any, bool]
"""A function, the tree of its arguments, and whether it is differentiated."""


def cases_of_operator(entry: Any, most: int) -> Iterator[Case]:
    def called(value: Any, args: Any, kwargs: Any) -> Any:
        return entry(value, *args, **kwargs)

    for dtype in TYPES:
        if dtype not in entry.supported_dtypes("cpu"):
            continue
        grad = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
        grad = grad and (dtype.is_floating_point or dtype.is_complex)
        samples = entry.sample_inputs("cpu", dtype, requires_grad=grad)
        given = ((s.input, s.args, dict(s.kwargs)) for s in samples)
        for values in unlike(given, most):
            yield called, values, grad


def unlike(given: Iterable[Any], most: int) -> Iterator[Any]:
    """The first so many trees of arguments that differ in more than sizes."""
    seen: set[str] = set()
    for values in itertools.islice(filter(has_elements, given), 4 * most):
        leaves, spec = tree_flatten(values)
        kinds = [str(v.dtype) if isinstance(v, torch.Tensor) else type(v).__name__ for v in leaves]
        kind = f"{kinds} {spec}"
        if kind not in seen:
            seen.add(kind)
            yield values
        if len(seen) == most:
            return


def has_elements(values: Any) -> bool:
    """Whether all tensors have some: no kernel looks at the types of what has none."""
    return all(v.numel() for v in tree_leaves(values) if isinstance(v, torch.Tensor))


def cases_of_module(entry: Any, most: int) -> Iterator[Case]:
    for dtype, train in itertools.product(TYPES[:3], (True, False)):
        inputs = entry.module_inputs_func(
            entry, device="cpu", dtype=dtype, requires_grad=False, training=train
        )
        for given in itertools.islice(inputs, most):
            made = given.constructor_input
            module = entry.module_cls(*made.args, **made.kwargs).to(dtype).train(train)
            names = [n for n, _ in module.named_parameters()]

            def called(values: Any, args: Any, kwargs: Any, module: Any = module) -> Any:
                return torch.func.functional_call(module, values, args, kwargs)

            values = {n: p.detach().requires_grad_(train) for n, p in module.named_parameters()}
            call = given.forward_input
            yield called, (values, call.args, call.kwargs), train and bool(names)


def run(case: Case) -> None:
    """Run a case in eager mode."""
    function, given, grad = case
    made = function(*fresh(given, grad))
    results = [r for r in tree_leaves(made) if needs_gradient(r)]
    if grad and results:
        torch.autograd.backward(results, [torch.ones_like(r) for r in results])


def needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def fresh(given: Any, grad: bool) -> Any:
    return tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad and grad), given
    )


def trace(case: Case, table: Any) -> None:
    """Trace a case, every operator of it looked at."""
    function, given, grad = case
    types = taken_types.TypeCheck(table)

    def compiled(graph: Any, _: Any) -> Any:
        types.check(graph)
        return graph

    def parted(joint: Any, inputs: Any, **kwargs: Any) -> Any:
        types.check(joint)
        return min_cut_rematerialization_partition(joint, inputs, **kwargs)

    leaves, spec = tree_flatten(fresh(given, grad))

    def flat(*tensors: Any) -> Any:
        values = iter(tensors)
        filled = [next(values) if isinstance(v, torch.Tensor) else v for v in leaves]
        made = function(*tree_unflatten(filled, spec))
        return [r for r in tree_leaves(made) if isinstance(r, torch.Tensor)]

    traced = aot_function(
        flat,
        fw_compiler=compiled,
        bw_compiler=lambda graph, _: graph,
        inference_compiler=compiled,
        partition_fn=parted,
        decompositions=types.decompositions,
    )
    with keep_resizing(table), types.watched():
        traced(*(v for v in leaves if isinstance(v, torch.Tensor)))


def taken(case: Case, table: Any) -> Mapping[str, Any]:
    """The keys of what a case calls; none where eager mode refuses it, or it is not traced."""
    taken_types._known.clear()
    try:
        run(case)
        trace(case, table)
    except Exception:  # whatever it is
        return {}
    return taken_types._known


def collect(most: int, every: int) -> set[str]:
    """What the samples show to be taken."""
    table = get_tracing_table(make_dispatcher())
    found: set[str] = set()
    entries = [(cases_of_operator, e) for e in op_db] + [(cases_of_module, e) for e in module_db]
    for make, entry in entries[::every]:
        with contextlib.suppress(Exception):  # the samples of some types are an error of torch's
            for case in make(entry, most):
                found.update(taken(case, table))
    return found


def write(path: Path, found: Iterable[str]) -> None:
    """Write a line an operator: its name, and the types of its arguments between blanks."""
    by_operator = collections.defaultdict(set)
    for key in found:
        operator, types = key.strip().split(" ")
        if "~" not in types:
            by_operator[operator].add(types)
    lines = [f"{op}\t {' '.join(sorted(types))} \n" for op, types in sorted(by_operator.items())]
    path.write_text("".join(lines), encoding="utf-8")
    count = sum(map(len, by_operator.values()))
    print(f"{path}: {count} of {len(lines)} operators, {path.stat().st_size} B")


def join(paths: Sequence[Path]) -> Iterator[str]:
    """What each torch takes that has the operator."""
    tables = [dict(line.split("\t") for line in p.read_text().splitlines()) for p in paths]
    for operator in dict.fromkeys(itertools.chain(*tables)):
        taken = [set(t[operator].split()) for t in tables if operator in t]
        for types in set.intersection(*taken):
            if not re.search(r"\bf2", types):
                yield f"{operator} {types}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="what this torch takes")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="of these, the table")
    parser.add_argument("--samples", type=int, default=3, help="samples a type (default 3)")
    parser.add_argument("--every", type=int, default=1, help="one entry of so many")
    args = parser.parse_args()
    if args.join:
        write(TABLE, join(args.join))
    if args.write:
        warnings.simplefilter("ignore")
        taken_types._accepted = dict  # type: ignore[assignment]  # all is noted, and nothing asked
        taken_types.is_tested = lambda _: True
        taken_types._Question.ask = lambda self: None  # type: ignore[method-assign]
        write(args.write, collect(args.samples, args.every))


if __name__ == "__main__":
    main()
