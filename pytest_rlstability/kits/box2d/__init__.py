"""Box2D worlds: counts of what they hold, the lines that made it, and errors when something destroyed is used."""
