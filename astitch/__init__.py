"""astitch: a just-in-time stitching compiler for the memory-intensive parts of ML programs on NVIDIA GPUs."""
