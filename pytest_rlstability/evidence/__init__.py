"""What is gathered about a process: stacks, threads, locks, the machine."""
