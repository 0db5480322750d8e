"""Converters, one module a family of operators; a backward operator lives beside its forward."""

FAMILIES = (
    "pointwise",
    "views",
    "linear_algebra",
    "symbolic",
)
"""The modules to import, in alphabetical order."""
