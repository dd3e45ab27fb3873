"""CUDA kernels written in Triton, each with a plain twin in torch."""
