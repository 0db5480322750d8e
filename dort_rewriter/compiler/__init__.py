"""Drives the phases: plan a graph, build its blocks, compile again, fall back, cache."""
