"""Why it dies: repeats a test or command in fresh processes, changes one thing at a time, and names the culprit."""
