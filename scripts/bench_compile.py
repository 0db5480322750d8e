"""Time to the first result, every cache cold: eager, Inductor and onnxrt, each in a new process.

usage: python scripts/bench_compile.py [--models a,b] [--modes inference,training] [--json FILE]
                                       [--backends inductor,onnxrt] [--growth 1,4,24] [--repeat N]
                                       [--twice] [--cpu-time] [--with-library]

A figure is the seconds from a model that is built to its first result (its gradients, in
training); torch and transformers are imported before. Caches of Inductor and of this package are
empty folders, new for each process; with ``--twice`` a second process finds what the first left.
``--growth`` measures Llama models of so many layers instead, and prints each time over layers.
``--cpu-time`` counts processor time on one thread, that of the compilers that were started
included: what to compare on a machine that does other things as well. Inductor then compiles one
file at a time, in its own process: workers that go on living would not be counted.
``--with-library`` puts the C++ library of our kernels into the empty folders: it is compiled once
per machine, not for each model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

DEFAULT = "mlp-10-32-1,mlp-512,cnn,resnet18,densenet121,llama-16x1,llama-256x2,gpt2,bert,vit"


def first_result(
    name: str, mode: str, backend: str, profile: bool, cpu_time: bool = False
) -> dict[str, Any]:
    """Build a model, and time its first result (in this process)."""
    import torch
    from bench_models import BenchModel, build, llama
    from bench_run import compiled, step_of

    if name.startswith("layers-"):
        module, args = llama(64, int(name.split("-")[1]), 2, 16)
        model = BenchModel(name, module, args)
    else:
        model = build(name)
    model.module.train(mode == "training")
    if cpu_time:
        torch.set_num_threads(1)
    threads = torch.get_num_threads()
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)
    step = step_of(model, compiled(model, backend), mode)
    if profile:
        import cProfile

        cProfile.runctx("step()", {}, {"step": step}, sort="cumulative")
    start, spent = time.perf_counter(), processor_seconds()
    step()
    seconds, spent = time.perf_counter() - start, processor_seconds() - spent
    return {
        "model": name,
        "mode": mode,
        "backend": backend,
        "seconds": spent if cpu_time else seconds,
        "cpu_seconds": spent,
        "threads": threads,
    }


def processor_seconds() -> float:
    """The processor time of this process, and of those that it started and that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run_apart(name: str, mode: str, backend: str, folder: str, cpu_time: bool) -> dict[str, Any]:
    """Time a first result in a new process whose caches are in ``folder``."""
    command = [sys.executable, __file__, "--worker", name, mode, backend]
    command += ["--cpu-time"] * cpu_time
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "DORT_CACHE_DIR": f"{folder}/dort",
    }
    if cpu_time:
        environment.update(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"model": name, "mode": mode, "backend": backend, "error": done.stderr[-800:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def copy_library(library: Path, folder: Path) -> None:
    """Put the C++ library of our kernels into a cache folder that is not there yet."""
    kernels = folder / "kernels"
    for made in (folder, kernels):
        made.mkdir(mode=0o700)
    digest = library.with_suffix(".sha256")
    for file in (library, digest) if digest.exists() else ():  # else it is installed
        shutil.copy2(file, kernels / file.name)


def measure(
    name: str, mode: str, backend: str, twice: bool, cpu_time: bool, library: Path | None
) -> list[dict[str, Any]]:
    processes = ("first", "second") if twice else ("first",)
    with tempfile.TemporaryDirectory() as folder:
        if library is not None:
            copy_library(library, Path(folder, "dort"))
        return [
            {**run_apart(name, mode, backend, folder, cpu_time), "process": p} for p in processes
        ]


def totals(rows: Sequence[dict[str, Any]], process: str) -> dict[str, float]:
    """The total seconds of each backend over the models that all of them ran."""
    failed = {(r["model"], r["mode"]) for r in rows if "error" in r}
    found: dict[tuple[str, str, str], list[float]] = {}
    for r in rows:
        if r["process"] == process and (r["model"], r["mode"]) not in failed:
            found.setdefault((r["backend"], r["model"], r["mode"]), []).append(r["seconds"])
    result: dict[str, float] = {}
    for (backend, _, _), seconds in found.items():
        result[backend] = result.get(backend, 0.0) + statistics.median(seconds)
    return result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=DEFAULT)
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--backends", default="inductor,onnxrt")
    parser.add_argument("--growth", help="numbers of layers of a Llama model")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--twice", action="store_true", help="also with the caches of a first run")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument(
        "--cpu-time", action="store_true", help="of one thread, not wall-clock time"
    )
    parser.add_argument(
        "--with-library", action="store_true", help="our C++ kernels are compiled already"
    )
    parser.add_argument("--profile", action="store_true", help="of one model, in this process")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    if arguments.worker:
        print(json.dumps(first_result(*arguments.worker, False, arguments.cpu_time)))
        return 0
    models = arguments.models.split(",")
    if arguments.growth:
        models = [f"layers-{n}" for n in arguments.growth.split(",")]
    modes, backends = arguments.modes.split(","), arguments.backends.split(",")
    if arguments.profile:
        first_result(models[0], modes[0], backends[-1], profile=True)
        return 0
    library = None
    if arguments.with_library:
        from dort_rewriter import custom_ops_library

        library = Path(custom_ops_library())
    rows: list[dict[str, Any]] = []
    for _ in range(arguments.repeat):
        for name in models:
            for mode in modes:
                for backend in backends:
                    for row in measure(
                        name, mode, backend, arguments.twice, arguments.cpu_time, library
                    ):
                        rows.append(row)
                        figure = row.get("error") or f"{row['seconds']:.2f} s"
                        print(
                            f"{name:13} {mode:9} {backend:14} {row['process']:6} {figure}",
                            flush=True,
                        )
    for process in ("first", "second") if arguments.twice else ("first",):
        print(
            f"total, {process} process:",
            {b: round(t, 1) for b, t in totals(rows, process).items()},
        )
    if arguments.growth:
        for row in rows:
            layers = int(row["model"].split("-")[1])
            print(
                f"{row['backend']} {row['mode']} {layers}: {row['seconds'] / layers:.3f} s a layer"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    return int(any("error" in r for r in rows))


if __name__ == "__main__":
    sys.exit(main())
