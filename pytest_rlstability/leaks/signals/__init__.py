"""Everything that can grow."""
