"""Drives an env with generated calls until it breaks, and writes the shortest test that shows it."""
