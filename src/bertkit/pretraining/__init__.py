"""From shards to a trained model: examples as a pure function of a number, and the objectives that learn from them."""
