"""Training examples as a pure function of seed, epoch and number: cutting, pairing, packing, masking, tensors."""
