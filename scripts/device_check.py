"""Check the backend on a GPU against eager: providers, memory, streams, results, fallback.

    python scripts/device_check.py --json out.json  # on the first CUDA device
    python scripts/device_check.py --device cpu     # the same checks without one

Needs onnxruntime-gpu. Exits with 0 when every check holds, and when there is no GPU at all, which
it says; with 1 when a check fails, or when onnxruntime cannot use the GPU that torch sees.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from device_checks import CHECKS, NEEDS_CUDA

from dort_rewriter.runtime.providers import CUDA


def missing_device(device: torch.device) -> tuple[str, int] | None:
    """Say why the checks cannot run, and with what the program ends; None if they can."""
    if device.type == "cpu":
        return None
    if not torch.cuda.is_available():
        return f"No GPU: torch {torch.__version__} sees none, nothing was checked.", 0
    import onnxruntime

    if CUDA not in onnxruntime.get_available_providers():
        return (
            f"onnxruntime {onnxruntime.__version__} has no {CUDA}: install onnxruntime-gpu in its "
            "place (they overwrite each other).",
            1,
        )
    return None


def run_checks(device: torch.device, chosen: str) -> dict[str, str]:
    """Run the checks whose names contain a text; return what each came to."""
    results: dict[str, str] = {}
    for name, function in CHECKS.items():
        if chosen not in name or (name in NEEDS_CUDA and device.type != "cuda"):
            continue
        torch._dynamo.reset()
        torch.manual_seed(0)
        try:
            function(device)
            results[name] = "ok"
        except Exception as error:  # whatever it is, the other checks are to be run
            traceback.print_exc()
            results[name] = f"{type(error).__name__}: {str(error).splitlines()[0:1]}"
        print(f"{'ok    ' if results[name] == 'ok' else 'FAILED'} {name}", flush=True)
    return results


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("-k", default="", metavar="TEXT", help="checks whose names contain it")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    if (problem := missing_device(device)) is not None:
        print(problem[0])
        return problem[1]
    results = run_checks(device, args.k)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    failed = [name for name, result in results.items() if result != "ok"]
    print(f"{len(results) - len(failed)} of {len(results)} checks hold on {device}.")
    return int(bool(failed) or not results)


if __name__ == "__main__":
    sys.exit(main())
