"""Vector envs whose workers may die or hang: bounded pipes, worker stacks, and the guard that names the worker."""
