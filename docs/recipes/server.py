"""A server with threads: compiled before it answers, batches of any size, weights in sessions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch


class Encoder(torch.nn.Module):
    """What answers: an encoder over sequences of 16 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.head = torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).mean(1))


def main() -> None:
    torch.manual_seed(0)
    model = Encoder().eval()
    if torch.__version__ < (2, 13):  # traces the encoder's one kernel with fixed sizes alone
        torch.backends.mha.set_fastpath_enabled(False)
    options = {"freeze": True}
    answer = torch.compile(model, backend="onnxrt", dynamic=True, options=options)
    requests = [torch.randn(1 + number % 6, 16, 32) for number in range(48)]

    @torch.no_grad()
    def serve(x: torch.Tensor) -> torch.Tensor:
        return answer(x)

    for size in (1, 2):  # a batch of one has a graph of its own
        serve(torch.randn(size, 16, 32))
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(serve, requests))
    with torch.no_grad():
        for x, y in zip(requests, answers, strict=True):
            torch.testing.assert_close(y, model(x), atol=1e-5, rtol=1e-5)
    print(f"{len(answers)} answers as in eager mode")


if __name__ == "__main__":
    main()
