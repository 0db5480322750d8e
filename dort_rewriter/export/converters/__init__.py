"""Converters, one module a family of operators; a backward operator lives beside its forward."""

FAMILIES = (
    "diagonals",
    "gathering",
    "indexing",
    "joining",
    "linear_algebra",
    "pointwise",
    "repeating",
    "scattering",
    "slicing",
    "splitting",
    "strides",
    "symbolic",
    "views",
)
"""The modules to import, in alphabetical order."""
