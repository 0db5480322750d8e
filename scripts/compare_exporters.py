"""Compare exporters over models of the zoo, and plant defects to see which are located.

usage: python scripts/compare_exporters.py [--names REGEX] [--runtimes reference openvino]
                                           [--defects 1] [--limit 120] [--keep]

Each model, small and in evaluation mode, runs in a process of its own, by
``compare_exporters`` with torch's exporter and this package's. Then ``--defects`` defects are
planted, one at a time, into the file of each: one operator for another, an attribute, operands
in another order, so that its result changes. A defect is located where the judge blames the
exporter and names the node, or nodes of which it is one. ``--keep`` puts what was found into
``docs/exporters.json``, out of which ``scripts/make_docs.py`` writes ``docs/exporters.md``.

Exits with 1 where a file of this package fails or differs, or a defect was not located.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import random
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).parent)]

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from children import Lost, measured  # noqa: E402
from exporter_figures import EXPORTERS as SHOWN  # noqa: E402
from exporter_figures import is_located, keep  # noqa: E402
from model_zoo import libraries, prepare  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from dort_rewriter import compare_exporters  # noqa: E402
from dort_rewriter.compiler.differences import Tolerance  # noqa: E402
from dort_rewriter.tools.comparison import EXPORTERS  # noqa: E402
from dort_rewriter.tools.judgment import Witness, exact_results, excess  # noqa: E402

Record = dict[str, Any]

NAMES = (
    "albert bart beit bert bloom clip convnext convnextv2 data2vec-text deberta-v2 deit "
    "distilbert electra ernie falcon gemma gpt2 gpt_neo gpt_neox gptj hubert llama mistral "
    "mobilenet_v2 mobilevit mpnet opt phi poolformer qwen2 qwen3 regnet resnet roberta segformer "
    "squeezebert swin t5 vit wav2vec2 xlm-roberta yolos"
).split()
"""Of transformers."""

TOLERANCE = Tolerance(absolute=1e-4, relative=1e-3)

SWAPS = {
    "Add": "Sub", "Sub": "Add", "Mul": "Add", "Div": "Mul", "Max": "Min", "Min": "Max",
    "Relu": "Neg", "Sigmoid": "Tanh", "Tanh": "Sigmoid", "Erf": "Tanh", "Exp": "Abs",
    "Sqrt": "Abs", "Reciprocal": "Neg", "Cos": "Sin", "Sin": "Cos", "Neg": "Abs",
    "Gelu": "Relu", "ReduceMean": "ReduceSum", "ReduceSum": "ReduceMean", "ReduceMax": "ReduceMin",
    "Greater": "Less", "Less": "Greater", "GreaterOrEqual": "LessOrEqual", "And": "Or",
    "LessOrEqual": "GreaterOrEqual", "Softplus": "Softsign", "AveragePool": "MaxPool",
    "GlobalAveragePool": "GlobalMaxPool",
}  # fmt: skip

ATTRIBUTES: dict[str, tuple[str, Any]] = {
    "LayerNormalization": ("epsilon", 0.5),
    "BatchNormalization": ("epsilon", 0.5),
    "InstanceNormalization": ("epsilon", 0.5),
    "Gemm": ("alpha", 0.5),
    "LeakyRelu": ("alpha", 0.7),
    "Softmax": ("axis", 0),
}


def defects(proto: onnx.ModelProto, seed: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield models with one defect each, and what its node computes, in an order at random."""
    places = [i for i, node in enumerate(proto.graph.node) if node.op_type in
              (*SWAPS, *ATTRIBUTES, "Where", "Concat")]  # fmt: skip
    random.Random(seed).shuffle(places)
    for place in places:
        spoiled = onnx.ModelProto()
        spoiled.CopyFrom(proto)
        node = spoiled.graph.node[place]
        kind = node.op_type
        if kind in SWAPS:
            node.op_type = SWAPS[kind]
        elif kind in ATTRIBUTES:
            name, value = ATTRIBUTES[kind]
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
        else:
            node.input[-2], node.input[-1] = node.input[-1], node.input[-2]
        yield f"{node.op_type} -> {node.output[0]}", spoiled


def planted(
    witness: Witness, proto: onnx.ModelProto, feeds: dict[str, Any], count: int, seed: int
) -> Iterator[Record]:
    """Yield what the judge says of defects that change a result."""
    for where, spoiled in defects(proto, seed):
        if not count:
            return
        try:
            onnx.checker.check_model(spoiled)
            outputs = run(spoiled, feeds)
        except Exception:  # types that do not fit: a runtime refuses that in any way
            continue
        gap = excess(outputs, witness.exact, TOLERANCE)
        if gap < 100:  # values inside are compared by what sums of them are rounded to
            continue
        count -= 1
        judged = witness.judge(spoiled, feeds, outputs)
        found = dataclasses.asdict(judged)
        yield {**found, "planted": where, "excess": gap}


def run(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), settings)
    return list(session.run(None, feeds))


def kept(export: Any, who: str, files: dict[str, onnx.ModelProto], *given: Any) -> Any:
    """What an exporter makes, kept: it is spoiled later."""
    files[who] = export(*given)
    return files[who]


def measure(label: str, name: str, options: argparse.Namespace) -> Record:
    try:
        subject = libraries()[label].subject(name)
    except Exception as error:  # a library may refuse a model in any way
        return {"left out": f"{type(error).__name__}: {str(error)[:200]}"}
    module = subject.module.eval()
    args, kwargs = subject.inputs(2)
    files: dict[str, onnx.ModelProto] = {}
    for who, export in [*EXPORTERS.items()]:
        EXPORTERS[who] = functools.partial(kept, export, who, files)
    with torch.no_grad():
        try:
            expected, again = (
                [t for t in tree_leaves(module(*args, **kwargs)) if torch.is_tensor(t)]
                for _ in range(2)
            )
            assert all(map(torch.equal, expected, again)), "it draws random numbers"
        except Exception as error:  # no model of the zoo then
            return {"left out": f"{type(error).__name__}: {str(error)[:200]}"}
        made = compare_exporters(
            module, args, kwargs, exporters=SHOWN,
            runtimes=options.runtimes, repeat=options.repeat,
        ).to_dict()  # fmt: skip
        made["defects"] = {}
        exact = exact_results(module, args, kwargs)
        witness = Witness(module, args, kwargs, expected, exact, TOLERANCE)
        for result in made["results"]:
            result["nodes"] = sum(result["nodes"].values())
            if not (options.defects and result["agrees"]):
                continue
            who = result["exporter"]
            proto = files[who]
            tensors = [a.numpy() for a in tree_leaves((args, kwargs)) if torch.is_tensor(a)]
            feeds = dict(zip([i.name for i in proto.graph.input], tensors, strict=True))
            seed = sum(map(ord, f"{name} {who}"))
            found = planted(witness, proto, feeds, options.defects, seed)
            made["defects"][who] = list(found)
    return made


def in_a_process(label: str, name: str, options: argparse.Namespace) -> Record:
    """What a process of its own finds of a model, with so many seconds of a processor."""

    def one(item: tuple[str, str]) -> Iterator[Record]:
        resource.setrlimit(resource.RLIMIT_CPU, (int(options.limit), int(options.limit)))
        prepare()
        try:
            yield measure(*item, options)
        except Exception as error:  # the next model is measured all the same
            yield {"error": f"{type(error).__name__}: {str(error)[:300]}"}

    (_, found), *_ = measured([(label, name)], one, limit=10 * options.limit)
    return {"error": str(found)} if isinstance(found, Lost) else found


def chosen(pattern: str) -> Iterator[tuple[str, str]]:
    for label in ("plain torch", "transformers"):
        library = libraries()[label]
        library.load()
        for name in library.names() if label == "plain torch" else NAMES:
            if re.search(pattern, name):
                yield label, name


def findings(record: Record) -> list[str]:
    """What is to be looked at: a file of ours that is not right, a defect that is not located."""
    if "left out" in record:
        return []
    if "error" in record:
        return [record["error"]]
    ours = [r for r in record["results"] if r["exporter"] == "dort_rewriter" and not r["agrees"]]
    said = [r["error"] or "differs" for r in ours]
    for who, found in record["defects"].items():
        said += [
            f"{who}: {d['planted']}: {d['fault']} {d['node']}" for d in found if not is_located(d)
        ]
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", default="", metavar="REGEX")
    parser.add_argument("--runtimes", nargs="*", default=[])
    parser.add_argument("--defects", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--json", metavar="FILE", help="what was found, added to what is there")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(arguments)
    path = Path(options.json) if options.json else None
    found: dict[str, Record] = {}
    if path is not None and path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
    for who in SHOWN:  # processes begin with what exporters import
        EXPORTERS[who](torch.nn.Linear(2, 2), (torch.randn(1, 2),), {}, 18, None)
    for label, name in chosen(options.names):
        if name in found:
            continue
        found[name] = in_a_process(label, name, options)
        if path is not None:
            path.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(name, findings(found[name]) or "", flush=True)
    if options.keep:
        names = ("torch", "onnxruntime", "onnx", "transformers", *options.runtimes)
        versions = {
            name: importlib.metadata.version(name)
            for name in names
            if importlib.util.find_spec(name)
        }
        keep(found, versions, libraries()["plain torch"].names())
    bad = [name for name, record in found.items() if findings(record)]
    print(f"{len(found)} models, {len(bad)} with findings: {bad}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
