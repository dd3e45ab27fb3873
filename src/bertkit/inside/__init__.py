"""A running model, seen from inside: traces as views, tables and catalogues."""
