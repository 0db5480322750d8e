"""FastAPI and uvicorn answer 500 requests of 1 to 16 rows from 8 clients, while the model they
serve is saved and loaded again."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import torch
import uvicorn
from fastapi import FastAPI
from torch import nn

import dort_rewriter

dort_rewriter.install()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
compiled = torch.compile(model, backend="onnxrt", dynamic=True)
requests = [torch.randn(1 + i % 16, 10) for i in range(500)]


def publish() -> None:
    with torch.no_grad():
        dort_rewriter.save(compiled, "folder", requests[3])


publish()
served = {"model": dort_rewriter.load("folder")}
app = FastAPI()


@app.post("/predict")
def predict(rows: list[list[float]]) -> list[list[float]]:  # in a thread of Starlette's pool
    with torch.inference_mode():
        return served["model"](torch.tensor(rows)).tolist()


@app.post("/reload")
def reload() -> None:
    served["model"] = dort_rewriter.load("folder")


listening = socket.create_server(("127.0.0.1", 0))
address = f"http://127.0.0.1:{listening.getsockname()[1]}"
server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
thread = threading.Thread(target=server.run, args=([listening],))
thread.start()
while not server.started:
    time.sleep(0.01)


def post(path: str, rows: object = None) -> object:
    """What is answered; anything but a success raises."""
    headers = {"Content-Type": "application/json"}
    request = Request(address + path, json.dumps(rows).encode(), headers)
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def redeploy() -> None:
    for _ in range(3):
        publish()
        post("/reload")


with torch.no_grad():
    expected = [model(x) for x in requests]
with ThreadPoolExecutor(8) as pool:
    again = threading.Thread(target=redeploy)
    again.start()
    answers = list(pool.map(lambda x: post("/predict", x.tolist()), requests))
    again.join()
server.should_exit = True
thread.join()
for got, want in zip(answers, expected, strict=True):
    torch.testing.assert_close(torch.tensor(got), want)
print("server: done")
