"""What the steps do. Each function runs in a fresh process, and may crash it."""
