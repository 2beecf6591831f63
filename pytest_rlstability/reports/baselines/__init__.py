"""A run compared with a saved one: what is measured of each test, and how changes are judged."""
