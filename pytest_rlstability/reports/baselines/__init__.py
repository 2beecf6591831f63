"""A run compared with a saved one: what is measured of each test, how changes are judged, and the file."""
