"""Recurrent layers, of the models before the Transformer: LSTM and GRU cells, and additive attention."""
