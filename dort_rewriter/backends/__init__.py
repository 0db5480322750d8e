"""Recipes for ``torch.compile(backend=...)``."""
