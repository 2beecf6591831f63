"""Runs in the test's own process: runs the test, sends its reports, checks its exit."""
