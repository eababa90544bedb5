"""What a GPU is: its numbers, its driver, the cost of a launch, and the choices that a plan leaves open on it."""
