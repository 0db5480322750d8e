"""Writing ONNX graphs: what the exporter records with and the optimizer rewrites with."""
