"""Pre-training: from shards to a trained model."""
