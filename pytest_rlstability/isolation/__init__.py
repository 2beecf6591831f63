"""How a test gets a process of its own, and what watches over it."""
