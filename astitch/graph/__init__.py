"""What to compute: the graph, what each op means, and facts that are read off it."""
