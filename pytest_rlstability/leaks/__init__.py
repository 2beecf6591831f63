"""Leak checks of a running test: laps, samples, who holds what grew, and the report."""
