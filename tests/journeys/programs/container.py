"""A container: no home, no folder that can be written to, one processor."""

import os

os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = "/dev/null"
os.environ["DORT_CACHE"] = "0"  # there is no place for one
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import torch  # noqa: E402

import dort_rewriter  # noqa: E402

dort_rewriter.install()
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
compiled = torch.compile(model, backend="onnxrt")
for rows in (4, 5, 6):
    x = torch.randn(rows, 10)
    torch.testing.assert_close(compiled(x), model(x))
print("container: done")
