"""Token ids in, vectors out. Read in this order: batch, embeddings, attention, layer, encoder.

Shape letters: N sequences, L length, T tokens of all sequences end to end, D width, H heads, K = D/H, V vocabulary.
"""
