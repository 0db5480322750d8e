"""A model, its gradient and a training step as files, and exporters side by side."""

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from dort_rewriter import compare_exporters, export_training_step, plot_dot, pretty_onnx, to_onnx

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 2)).eval()
x = torch.randn(3, 4)
for opset in (13, 18, 21):
    proto = to_onnx(model, (x,), target_opset=opset, dynamic_shapes=({0: "batch"},))
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for rows in (x, torch.randn(7, 4)):
        (got,) = session.run(None, {proto.graph.input[0].name: rows.numpy()})
        np.testing.assert_allclose(got, model(rows).detach().numpy(), rtol=1e-4, atol=1e-5)
assert "Gemm" in pretty_onnx(proto)
assert "digraph" in plot_dot(proto).dot
assert compare_exporters(model, x, exporters=["dort_rewriter"], repeat=1)["dort_rewriter"].agrees

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
example = (x, torch.randn(3, 2))
export_training_step(model, nn.MSELoss(), optimizer, example, "step")
onnx.checker.check_model("step/step.onnx")
print("exporter: done")
