"""What was compiled, for people: explanations, tables, traces."""
