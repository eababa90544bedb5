"""Passes from graph to graph; they know nothing of stitch ops."""
