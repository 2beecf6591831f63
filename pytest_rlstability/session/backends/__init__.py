"""The ways to get a process for a test, seen from pytest's process: one file each behind one interface."""
