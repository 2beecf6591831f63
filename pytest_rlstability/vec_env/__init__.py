"""Vector envs whose workers may die or get stuck: bounded pipes, last words, and the guard that names the worker."""
