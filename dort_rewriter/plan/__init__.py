"""What is decided about an ATen graph before a line of ONNX is written: a GraphPlan."""
