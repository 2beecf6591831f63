"""Everything that can grow, one file each."""
