"""Saved models: what is in the file, what survives on another machine or Python, and whether it did."""
