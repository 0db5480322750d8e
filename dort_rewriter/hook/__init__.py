"""Patches on torch: what is replaced, where, and how it is taken back."""
