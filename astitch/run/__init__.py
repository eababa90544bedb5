"""Running a program without XLA around it: through CuPy, or emulated on the processor."""
