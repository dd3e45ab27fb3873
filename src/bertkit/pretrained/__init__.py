"""The bundled model, as a folder that `bertkit.load()` reads; there is no code here.

`tools/bundle.py` fills it: config.json, the tokenizer, model.small.safetensors and its checksum, and in `sentences/`
the variant for sentence vectors, whose file holds only what differs.
"""
