"""Saved models: what is in the file, what of it survives a trip, and whether it did."""
