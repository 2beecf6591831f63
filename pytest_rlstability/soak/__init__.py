"""Soaks: laps for hours, what they came to so far, and how little of it has to be kept."""
