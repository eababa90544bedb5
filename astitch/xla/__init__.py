"""Running a program inside XLA: the module with kernels in it, loops and branches, and its caches."""
