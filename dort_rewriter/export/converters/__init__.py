"""Converters, one module a family of operators; a backward operator lives beside its forward.

All modules of this folder are imported for what they register.
"""
