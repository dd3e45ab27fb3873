"""Fine-tuning: labeled files in, a model with a decision layer out."""
