"""Stitch ops: after stitch_scope.py found them, which of them share a kernel, and which are equal."""
