"""Look inside: print, draw, compare, explain."""
