"""Rules by set: those of ``standard`` operators are the set ``default``; ``onnxruntime`` emits
operators of ONNX Runtime, ``kernels`` those of this package; ``recognize`` is what they share."""
