"""Runs a command, mostly a training script, under the same watch as a test, outside pytest."""
