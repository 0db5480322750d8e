"""What tests of lifetimes need: everything that nobody refers to is gone."""

from __future__ import annotations

import gc
import sysconfig

IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""Whether this Python has no global lock."""


def collect() -> None:
    """Without that lock, what finalizers let go of waits for the next collection, and so on."""
    gc.collect()
    for _ in range(4 if IS_FREE_THREADED else 0):
        gc.collect()
