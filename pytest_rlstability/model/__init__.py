"""Plain data that every room shares: messages, runs, verdicts, series, units. Imports no other room."""
