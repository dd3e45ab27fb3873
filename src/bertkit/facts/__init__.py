"""Every claim of the source documents, executed against the running code.

Each fact says what should be, measures what is, and compares: it never holds a number against itself.
"""
