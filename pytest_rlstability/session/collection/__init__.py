"""Imports conftests and test modules under guard: one that crashes or hangs fails alone."""
