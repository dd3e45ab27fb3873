"""What pre-training and fine-tuning share: training loop, optimizers, schedule, ranks, resumable runs, records."""
