"""Rewrite ONNX graphs: rules, passes, and what they report."""
