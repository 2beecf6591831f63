"""Runs in the process between pytest and the tests: it starts test processes and reaps them."""
