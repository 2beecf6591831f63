"""What in this machine crashes training code: facts, steps in processes of their own, and advice."""
