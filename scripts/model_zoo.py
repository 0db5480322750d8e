"""Run a zoo of models by the ``onnxrt`` backend, and compare each with eager mode.

usage: python scripts/model_zoo.py --json results.json [--libraries timm plain] [--names ...]

Models of transformers, timm, torchvision, torchaudio, torch_geometric, diffusers, and models in
plain torch; those libraries that are installed. Each runs in a process of its own with a limit of
time: inference and a training step, some of them with dynamic shapes and under autocast. What is
in the file already is not run again. ``--keep NAME`` adds the results under this name to
``docs/reliability.json``, out of which ``scripts/make_docs.py`` writes ``docs/reliability.md``.

Exits with 1 when a model is wrong, in error, or was given up to torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import logging
import os
import resource
import select
import signal
import sys
import time
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
from reliability import keep  # noqa: E402

EVERY = 4
"""Every how many models one runs with dynamic shapes and under autocast as well."""

WAITING = 10
"""How much longer than its limit of processor time a model may take on a machine that is busy."""

Record = dict[str, Any]


def libraries() -> dict[str, Any]:
    """What makes models, by name: ``names()``, ``subject(name)``, ``load()``."""
    others = {library.name: library for library in zoo_libraries.LIBRARIES}
    return {"plain torch": zoo_plain, "transformers": zoo_transformers, **others}


def measure(library: Any, name: str, ways: Sequence[str], device: str) -> Iterator[Record]:
    """Yield what each way of running a model gave, in the process of this model."""
    try:
        subject = dataclasses.replace(library.subject(name), device=device)
    except Exception as e:  # a library may refuse a model in any way
        yield {"way": "all", "status": "left out", "detail": zoo_check.brief(e)}
        return
    for way in ways:
        yield {"way": way, **dataclasses.asdict(zoo_check.check(subject, way))}


def in_a_process(
    library: Any, name: str, ways: Sequence[str], limit: float, device: str = "cpu"
) -> list[Record]:
    """Measure a model in a fork of this process; what it did before it died or hung is kept."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
        with open(writing, "w", encoding="utf-8") as lines:
            for record in measure(library, name, ways, device):
                print(json.dumps(record), file=lines, flush=True)
        os._exit(0)
    os.close(writing)
    text, ended = read_until_closed(reading, time.monotonic() + WAITING * limit)
    if not ended:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended = ended and status not in (-signal.SIGXCPU, -signal.SIGKILL)
    records = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    if records and records[-1]["way"] == "all":
        return records
    for way in ways[len(records) :]:
        detail = "too slow" if not ended else f"the process ended with {status}"
        records.append({"way": way, "status": "error" if ended else "too slow", "detail": detail})
    return records


def read_until_closed(source: int, deadline: float) -> tuple[str, bool]:
    """Read a pipe until its other end is closed, or the time is over."""
    parts: list[bytes] = []
    with os.fdopen(source, "rb", buffering=0) as pipe:
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([pipe], [], [], left)[0]:
                break
            if not (part := pipe.read(65536)):
                return b"".join(parts).decode(), True
            parts.append(part)
    return b"".join(parts).decode(), False


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is not in the file yet."""
    path = Path(options.json)
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    data.setdefault("versions", versions())
    data.setdefault("left out", {})
    found: dict[str, list[Record]] = data.setdefault("models", {})
    for library, name, index in chosen(options, data):
        key = f"{library.label}/{name}"
        if key in found and not (options.again and is_finding(found[key])):
            continue
        every = index % EVERY == 0 or library.label == "plain torch"
        ways = options.ways or (zoo_check.WAYS if every else zoo_check.WAYS[:2])
        found[key] = in_a_process(library.source, name, ways, options.limit, options.device)
        print(key, *(f"{r['way']}: {r['status']}" for r in found[key]), flush=True)
        path.write_text(json.dumps(data, indent=1, sort_keys=True))
    return data


def is_finding(records: Sequence[Record]) -> bool:
    return any(r["status"] not in ("right", "left out") for r in records)


@dataclasses.dataclass
class Chosen:
    """A library with the name it is shown by."""

    label: str
    source: Any


def chosen(options: argparse.Namespace, data: dict[str, Any]) -> Iterator[tuple[Chosen, str, int]]:
    """Yield the models to run, the libraries in turn, so that a part of a run says something."""
    lists = []
    zoo_libraries.declare_torchvision()
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
        lists.append([(i / len(names), i, n, Chosen(label, source)) for i, n in enumerate(names)])
    for _, index, name, library in sorted((m for some in lists for m in some), key=lambda m: m[0]):
        yield library, name, index


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    names = ("torch", "onnxruntime", "transformers", "timm", "torch_geometric", "diffusers")
    return {n: importlib.metadata.version(n) for n in names if importlib.util.find_spec(n)}


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
    parser.add_argument("--keep", metavar="NAME", help="add the results to docs/reliability.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # A device that this process has used is lost to its forks: this way asking is no use of it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    logging.getLogger("dort_rewriter").propagate = False
    os.environ["DORT_CACHE"] = "0"
    os.environ.setdefault("ONNXRT_CHANGE_REWRITER", "1")
    import dort_rewriter

    dort_rewriter.install()
    data = run(options)
    findings = {k: r for k, r in data["models"].items() if is_finding(r)}
    print(f"{len(data['models'])} models, {len(findings)} findings")
    if options.keep:
        keep(options.keep, data)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
