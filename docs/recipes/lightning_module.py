"""Lightning: the inner network is compiled, the module stays what Lightning knows."""

from __future__ import annotations

import lightning
import torch


class Network(torch.nn.Module):
    """What is compiled: a class of its own, which Dynamo does not pass over."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 8, 3)
        self.head = torch.nn.Linear(288, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.convolution(x).relu().flatten(1))


class Classifier(lightning.LightningModule):
    """A classifier whose network may be compiled."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, label = batch
        loss = torch.nn.functional.cross_entropy(self.network(x), label)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train(compiled: bool) -> list[float]:
    torch.manual_seed(0)
    network = Network()
    if compiled:
        network.compile(backend="onnxrt")  # in place: checkpoints keep their names
    data = torch.utils.data.TensorDataset(torch.randn(64, 1, 8, 8), torch.arange(64) % 4)
    module = Classifier(network)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=16))
    return module.losses


def main() -> None:
    eager, compiled = train(False), train(True)
    print("eager ", *(f"{loss:.4f}" for loss in eager))
    print("onnxrt", *(f"{loss:.4f}" for loss in compiled))
    torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-5)


if __name__ == "__main__":
    main()
