"""Claims of the source documents about BERT, checked by running the code.

Each fact compares an expected value with a measured one. Expected values are known, or computed independently of the
model code (`by_hand`); claims about what bertkit does not implement are listed in `absent`.
"""
