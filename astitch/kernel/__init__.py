"""A plan as statements, between the mapping and the text that emit_cuda.py prints."""
