"""Locks that know who holds them, who waits for them, and in which order they are taken."""
