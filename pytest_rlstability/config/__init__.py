"""What the user asked for: flags, ini settings and markers, turned into one plan for each test."""
