"""Rules by set: ``default`` (standard operators), ``onnxruntime`` and ``experimental``."""
