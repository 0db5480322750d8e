"""Converters, one module a family of operators; a backward operator lives beside its forward."""

FAMILIES = (
    "attention",
    "attention_cuda",
    "batch_norm",
    "diagonals",
    "embedding",
    "embedding_bag",
    "gathering",
    "indexing",
    "joining",
    "linear_algebra",
    "normalization",
    "pointwise",
    "recurrent",
    "repeating",
    "scattering",
    "slicing",
    "softmax",
    "splitting",
    "strides",
    "symbolic",
    "views",
)
"""The modules to import, in alphabetical order."""
