"""Analysis of a model: attention, attribution, probes, word senses, static vectors."""
