"""A saved model answers 500 requests of 1 to 16 rows in 8 threads, while it is saved again."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import dort_rewriter

dort_rewriter.install()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
compiled = torch.compile(model, backend="onnxrt", dynamic=True)
requests = [torch.randn(1 + i % 16, 10) for i in range(500)]
with torch.no_grad():
    expected = [model(x) for x in requests]
    dort_rewriter.save(compiled, "folder", requests[3])
loaded = dort_rewriter.load("folder")


def answer(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return loaded(x)


def redeploy() -> None:
    with torch.no_grad():
        dort_rewriter.save(compiled, "folder", requests[3])


with ThreadPoolExecutor(8) as pool:
    again = threading.Thread(target=redeploy)
    again.start()
    answers = list(pool.map(answer, requests))
    again.join()
for got, want in zip(answers, expected, strict=True):
    torch.testing.assert_close(got, want)
torch.testing.assert_close(dort_rewriter.load("folder")(requests[0]), expected[0])
print("server: done")
