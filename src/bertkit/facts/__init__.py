"""Claims of the source documents about BERT, checked against the running code.

Each fact says what should be, measures what the product does, and compares. What is expected is computed apart from the
product (`by_hand`), or known; what bertkit does not have is listed too (`absent`).
"""
