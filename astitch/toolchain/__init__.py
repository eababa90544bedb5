"""CUDA text to a loadable kernel: NVRTC, the cache of kernels, and compiling while others are planned."""
