"""A running service: every head of every loaded model over HTTP, batches shared by all clients."""
