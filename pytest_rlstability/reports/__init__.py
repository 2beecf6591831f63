"""Consumers of events, one file each."""
