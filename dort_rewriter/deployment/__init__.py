"""Compiled models in other processes and at other times: saved, loaded, made ahead."""
