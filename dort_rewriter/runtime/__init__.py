"""Sessions of ONNX Runtime and what runs at each call."""
