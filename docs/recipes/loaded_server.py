"""A server of what was saved: eight clients, batches of any size, a new model while it serves."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import torch

import dort_rewriter

WIDTH, REQUESTS, CLIENTS = 16, 500, 8


def make_model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(WIDTH, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
    return torch.nn.Sequential(*layers).eval()


def publish(model: torch.nn.Module, folder: Path) -> None:
    """What a build does: a graph for any batch, and one for a batch of one."""
    compiled = torch.compile(model, backend="onnxrt", dynamic=True)
    dort_rewriter.save(compiled, folder, torch.randn(4, WIDTH))


class Served:
    """What the server holds: the model of a folder, replaced by the one that is there now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reload()

    def reload(self) -> None:
        self.model = dort_rewriter.load(self.folder)  # calls that run go on with the old one

    def answer(self, rows: list[list[float]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).tolist()


def http_server(served: Served) -> ThreadingHTTPServer:
    """POST / with rows of numbers; POST /reload."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                if self.path == "/reload":
                    status, found = 200, served.reload()
                else:
                    status, found = 200, served.answer(json.loads(body))
            except dort_rewriter.CallMismatchError as error:
                status, found = 422, str(error)  # what the model was not saved for
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

    return Server(("127.0.0.1", 0), Handler)


def fastapi_app(served: Served) -> Any:
    """The same for ``uvicorn``: functions that are not ``async`` run on its threads."""
    from fastapi import FastAPI, HTTPException

    app = FastAPI()

    @app.post("/")
    def answer(rows: list[list[float]]) -> list[list[float]]:
        try:
            return served.answer(rows)
        except dort_rewriter.CallMismatchError as error:
            raise HTTPException(422, str(error)) from error

    @app.post("/reload")
    def reload() -> None:
        served.reload()

    return app


def start(served: Served) -> tuple[str, Callable[[], None]]:
    """Serve on a thread; the address, and what ends it."""
    if "--fastapi" not in sys.argv:
        server = http_server(served)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", server.shutdown
    import uvicorn

    config = uvicorn.Config(fastapi_app(served), port=8765, log_level="warning")
    runner = uvicorn.Server(config)
    threading.Thread(target=runner.run, daemon=True).start()
    while not runner.started:
        threading.Event().wait(0.05)
    return "http://127.0.0.1:8765", lambda: setattr(runner, "should_exit", True)


def post(address: str, content: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(address, json.dumps(content).encode(), headers), timeout=60) as response:
        return json.load(response)


def main() -> None:
    old, new = make_model(0), make_model(1)
    batches = [torch.randn(1 + number % 16, WIDTH) for number in range(REQUESTS)]
    with TemporaryDirectory() as name:
        folder = Path(name) / "saved"
        publish(old, folder)
        address, stop = start(Served(folder))
        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = [clients.submit(post, address, x.tolist()) for x in batches]
            answers[REQUESTS // 4].result()
            publish(new, folder)
            post(f"{address}/reload", None)
            found = [torch.tensor(answer.result()) for answer in answers]
        last = torch.tensor(post(address, batches[0].tolist()))
        stop()
    with torch.no_grad():
        for x, y in zip(batches, found, strict=True):
            assert any(torch.allclose(y, m(x), atol=1e-5) for m in (old, new)), x.shape
        torch.testing.assert_close(last, new(batches[0]), atol=1e-5, rtol=1e-5)
    print(f"{len(found)} answers as in eager mode, of the old model or the new")


if __name__ == "__main__":
    main()
