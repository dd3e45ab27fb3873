"""The published model families, one file per row; plain data, without torch."""
