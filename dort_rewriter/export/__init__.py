"""From an FX graph of ATen operators to an ONNX model."""
