"""Engines: sets of operations that compute the encoder fast on CPUs and GPUs, and batches by token budget."""
