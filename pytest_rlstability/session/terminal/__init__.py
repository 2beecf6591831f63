"""What the terminal shows of a run besides pytest's own lines."""
