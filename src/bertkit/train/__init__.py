"""What pre-training and fine-tuning share: optimizer, schedule, ranks, runs that survive a kill, records."""
