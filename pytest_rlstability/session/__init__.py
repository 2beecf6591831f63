"""Runs in pytest's own process: hands tests to other processes, watches them and reports what came of them."""
