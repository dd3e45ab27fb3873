"""CUDA kernels written in Triton, each with a plain twin in `kernels` or `word_loss`."""
