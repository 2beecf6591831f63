"""``rl_locks``: wait times, owners and order of a test's locks."""
