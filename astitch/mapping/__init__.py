"""Which thread computes which element, and through which memory others read it."""
