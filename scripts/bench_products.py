"""Products of float32 by MKL, and by parts in bfloat16: GFLOP/s, and errors against float64.

usage: python scripts/bench_products.py [--sizes 512x256x256,128x768x3072] [--terms 6,3]
                                        [--threads 2] [--seconds 1] [--loops]

Sizes are rows, what is summed over, columns. With ``constant`` the second factor is laid out once.
Errors are of the largest result. Ways take turns; medians. Needs a processor with AMX, or
``--loops``, whose errors are those of the tiles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from dort_rewriter.kernels.operators import MKL_PRODUCT, OWN_DOMAIN
from dort_rewriter.kernels.torch_library import multiplies_by_parts
from dort_rewriter.runtime.session import create_session
from dort_rewriter.tools.benchmark import alternate

SIZES = (
    "512x256x256,512x256x512,512x128x512,256x512x512,512x1024x1024,128x768x3072,64x1024x1024,"
    "2048x2048x2048"
)


def session(threads: int, **attributes: int) -> onnxruntime.InferenceSession:
    """A session of one product."""
    node = helper.make_node(MKL_PRODUCT, ["a", "b"], ["y"], domain=OWN_DOMAIN, **attributes)
    described = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "aby"]
    graph = helper.make_graph([node], "product", described[:2], described[2:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(OWN_DOMAIN, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    return create_session(model, options=options).ort


def measure(sizes: str, ways: dict[str, dict[str, int]], threads: int, seconds: float) -> None:
    m, k, n = map(int, sizes.split("x"))
    draw = np.random.default_rng(0)
    feeds = {
        name: draw.standard_normal(shape, np.float32)
        for name, shape in {"a": (m, k), "b": (k, n)}.items()
    }
    exact = feeds["a"].astype(np.float64) @ feeds["b"]
    steps: dict[str, Any] = {
        name: partial(session(threads, **how).run, None, feeds) for name, how in ways.items()
    }
    errors = {s: abs(step()[0] - exact).max() / abs(exact).max() for s, step in steps.items()}
    spent = alternate(steps, seconds, time.perf_counter)
    rates = {s: 2e-9 * m * k * n / statistics.median(t) for s, t in spent.items()}
    cells = (
        f"{s} {rate:.0f} ({rate / rates['MKL']:.2f}) {errors[s]:.1e}" for s, rate in rates.items()
    )
    print(f"{sizes:16}", " | ".join(cells), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--terms", default="6,3")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each way and sizes")
    parser.add_argument("--loops", action="store_true", help="without AMX: slow, equal results")
    options = parser.parse_args()
    if not (options.loops or multiplies_by_parts()):
        print("This processor has no AMX, or torch no MKL.", file=sys.stderr)
        return 1
    ways: dict[str, dict[str, int]] = {"MKL": {}}
    for terms in map(int, options.terms.split(",")):
        how = {"terms": terms, "loops": int(options.loops)}
        ways |= {f"{terms}": how, f"{terms}, constant": {**how, "constant": 1}}
    for sizes in options.sizes.split(","):
        measure(sizes, ways, options.threads, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
