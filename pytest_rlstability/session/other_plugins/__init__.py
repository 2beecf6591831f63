"""Keeps other plugins of pytest working although tests run in other processes."""
