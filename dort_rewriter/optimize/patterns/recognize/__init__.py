"""Layers that exporters write out node by node, told from their nodes; rules decide what for."""
