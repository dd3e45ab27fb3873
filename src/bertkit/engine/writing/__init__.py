"""Generating tokens: search strategies, and the key-value cached steps that they call."""
