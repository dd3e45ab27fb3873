"""Teach a model a task: labeled files in, a model with a decision layer out."""
