"""Attention: found by what it computes, and handed to a library whole."""
