"""Generating text: search strategies, key-value cached steps, and text that arrives token by token."""
