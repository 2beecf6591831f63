"""Runs in the test's own process: repeats a test or its laps, measures what grows and finds who holds it."""
