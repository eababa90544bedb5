"""Tilings of an iteration space over blocks and threads: the types, and the strategies by name."""
