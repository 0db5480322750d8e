"""Run a zoo of models by the ``onnxrt`` backend, and compare each with eager mode.

usage: python scripts/model_zoo.py --json results.json [--libraries timm plain] [--names ...]

Models of transformers, timm, torchvision, torchaudio, torch_geometric, diffusers, and models in
plain torch; those libraries that are installed. Each runs in a process of its own with a limit of
time: inference and a training step, some of them with dynamic shapes and under autocast. What is
in the file already is not run again. ``--keep NAME`` adds the results under this name to
``docs/reliability.json``, out of which ``scripts/make_docs.py`` writes ``docs/reliability.md``.

Exits with 1 when a model is wrong, in error, or fell back.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import logging
import multiprocessing
import os
import resource
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import torch  # noqa: E402
import zoo_check  # noqa: E402
import zoo_libraries  # noqa: E402
import zoo_plain  # noqa: E402
import zoo_transformers  # noqa: E402
from children import FORKS, Lost, measured  # noqa: E402
from reliability import keep  # noqa: E402
from sweeps import require_backend, require_verdicts  # noqa: E402

EVERY = 4
"""Every how many models one runs with dynamic shapes and under autocast as well."""

WAITING = 10
"""How much longer than its limit of processor time a way may take on a machine that is busy."""

Record = dict[str, Any]


def libraries() -> dict[str, Any]:
    """What makes models, by name: ``names()``, ``subject(name)``, ``load()``."""
    others = {library.name: library for library in zoo_libraries.LIBRARIES}
    return {"plain torch": zoo_plain, "transformers": zoo_transformers, **others}


def measure(
    library: Any, name: str, ways: Sequence[str], device: str, providers: Sequence[str]
) -> Iterator[Record]:
    """Yield what each way of running a model gave, in the process of this model."""
    options = {"preferred_execution_providers": providers} if providers else None
    try:
        subject = dataclasses.replace(library.subject(name), device=device, options=options)
    except Exception as e:  # a library may refuse a model in any way
        yield {"way": "all", "status": "left out", "detail": zoo_check.brief(e)}
        return
    for way in ways:
        yield {"way": way, **dataclasses.asdict(zoo_check.check(subject, way))}


def measure_in_child(
    model: tuple[str, str],
    ways: Sequence[str],
    limit: float,
    device: str,
    providers: Sequence[str],
) -> Iterator[Record]:
    """Measure a model by its library and name; what was told before the process died is kept."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
    prepare()
    label, name = model
    library = libraries()[label]
    library.load()
    yield from measure(library, name, ways, device, providers)


def in_a_process(
    label: str,
    name: str,
    ways: Sequence[str],
    limit: float,
    device: str = "cpu",
    providers: Sequence[str] = (),
) -> list[Record]:
    """Measure a model in a process of its own: a fork, which has the libraries already.

    On a device it is a new process: the libraries that were imported may have used the device,
    and what has used CUDA is lost to its forks.
    """
    context = FORKS if device == "cpu" else multiprocessing.get_context("spawn")
    one = functools.partial(
        measure_in_child, ways=ways, limit=limit, device=device, providers=providers
    )
    found = measured([(label, name)], one, limit=WAITING * limit, context=context)
    *records, last = [record for _, record in found]
    if not isinstance(last, Lost):
        return [*records, last]
    too_slow = last.status in (None, -signal.SIGXCPU, -signal.SIGKILL)
    for way in ways[len(records) :]:
        detail = "too slow" if too_slow else str(last)
        records.append(
            {"way": way, "status": "too slow" if too_slow else "error", "detail": detail}
        )
    return records


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is not in the file yet."""
    path = Path(options.json)
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    data.setdefault("versions", versions())
    data.setdefault("left out", {})
    found: dict[str, list[Record]] = data.setdefault("models", {})
    for label, name, index in chosen(options, data):
        key = f"{label}/{name}"
        if key in found and not (options.again and is_finding(found[key])):
            continue
        every = index % EVERY == 0 or label == "plain torch"
        ways = options.ways or (zoo_check.WAYS if every else zoo_check.WAYS[:2])
        found[key] = in_a_process(
            label, name, ways, options.limit, options.device, options.providers
        )
        print(key, *(f"{r['way']}: {r['status']}" for r in found[key]), flush=True)
        path.write_text(json.dumps(data, indent=1, sort_keys=True))
    return data


def is_finding(records: Sequence[Record]) -> bool:
    return any(r["status"] not in ("right", "left out") for r in records)


def is_left_out(records: Sequence[Record]) -> bool:
    return all(r["status"] == "left out" for r in records)


def chosen(options: argparse.Namespace, data: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield the models to run, the libraries in turn, so that a part of a run says something."""
    lists = []
    for label, source in libraries().items():
        if options.libraries and label not in options.libraries:
            continue
        try:
            source.load()
            names = source.names()
        except (ImportError, OSError, RuntimeError) as e:
            data["left out"][label] = zoo_check.brief(e)
            continue
        names = [n for n in names if not options.names or n in options.names]
        lists.append([(i / len(names), i, n, label) for i, n in enumerate(names)])
    for _, index, name, label in sorted((m for some in lists for m in some), key=lambda m: m[0]):
        yield label, name, index


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    names = ("torch", "onnxruntime", "transformers", "timm", "torch_geometric", "diffusers")
    return {n: importlib.metadata.version(n) for n in names if importlib.util.find_spec(n)}


def prepare() -> None:
    """What a process needs before it builds a model."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    logging.getLogger("dort_rewriter").propagate = False
    os.environ["DORT_CACHE"] = "0"
    os.environ.setdefault("ONNXRT_CHANGE_REWRITER", "1")
    zoo_libraries.declare_torchvision()
    import dort_rewriter

    dort_rewriter.install()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", required=True, help="the file of the results; it is read first")
    parser.add_argument("--libraries", nargs="*", help="only these")
    parser.add_argument("--names", nargs="*", help="only these models")
    parser.add_argument("--ways", nargs="*", choices=zoo_check.WAYS)
    parser.add_argument("--again", action="store_true", help="run again what was not right")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds of processor time for one model"
    )
    parser.add_argument("--device", default="cpu", help="where they run: cpu, cuda")
    parser.add_argument("--providers", nargs="*", default=(), help="execution providers")
    parser.add_argument("--keep", metavar="NAME", help="add the results to docs/reliability.json")
    options = parser.parse_args()
    prepare()
    require_backend()
    data = run(options)
    findings = {k: r for k, r in data["models"].items() if is_finding(r)}
    runs = collections.Counter(r["status"] for v in data["models"].values() for r in v)
    print(f"{len(data['models'])} models, {len(findings)} findings; runs: {dict(runs)}")
    if options.keep:
        keep(options.keep, data)
    left = [f"{name}: {r[0]['detail']}" for name, r in data["models"].items() if is_left_out(r)]
    reasons = [f"{name}: {reason}" for name, reason in data["left out"].items()]
    require_verdicts(len(data["models"]) - len(left), left or reasons, most=1.0)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
