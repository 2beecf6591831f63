"""A TCP proxy that breaks connections on purpose: the faults, the relay, and the process it runs in."""

HOST = "127.0.0.1"
"""Where proxies listen."""
