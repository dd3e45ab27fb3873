"""Many texts through the encoder, as quickly as the machine can: batches of tokens, and its twins for CPUs and GPUs."""
