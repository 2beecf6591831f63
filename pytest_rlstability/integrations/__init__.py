"""Progress from the libraries people train with: a Gymnasium wrapper and an SB3 callback."""
