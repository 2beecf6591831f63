"""Samples and facts in, a verdict out: pure functions."""
