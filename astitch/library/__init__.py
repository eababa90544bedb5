"""Calls that are not astitch's own: cuBLASLt, cuDNN, XLA for what nothing else computes."""
