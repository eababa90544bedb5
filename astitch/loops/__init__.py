"""A `while` as one kernel: what it carries, what can leave it, its axes, its plan and its text."""
