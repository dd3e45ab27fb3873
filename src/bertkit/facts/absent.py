"""Items of the source documents that this command does not run: what is missing, and what takes more than this.

They are listed so that nothing is left out in silence.
"""

from bertkit.facts.fact import Fact

DECODER = "bertkit has encoders only: no decoder, no attention to another text"
GLOSSARY = "bertkit has no glossary"

facts = [
    Fact("M17", "E624-745, B155-163", "a decoder attends to what it wrote and to the encoder's output", absent=DECODER),
    Fact("M18", "E747-784", "a decoder's last layer: linear, softmax, argmax over the vocabulary", absent=DECODER),
    Fact("M19", "B161-167, E656", "a text is generated word by word until its end is generated", absent=DECODER),
    Fact("M20", "B28-44, E525", "the predecessor: LSTM with additive attention", absent="bertkit has no RNN"),
    Fact("M21", "B22-26", "what tells an auto-encoder from an encoder-decoder", absent=GLOSSARY),
    Fact("P23", "E845", "VideoBERT", absent=GLOSSARY),
    Fact(
        "P15",
        "D968",
        "ELECTRA beats BERT in small configurations",
        elsewhere="ten minutes each on a GPU: benchmarks/results/2026-11-15-mlm-electra-h200.json",
    ),
    Fact(
        "P19",
        "E833-838, D231",
        "pre-training on a domain's text improves tasks of that domain",
        elsewhere="hours of training: `bertkit pretrain --from` does it, its effect is not measured",
    ),
    Fact("F16", "E854", "sentiment behind an API, in a container", elsewhere="a container: deploy/Dockerfile"),
    Fact(
        "S1",
        "E883-887",
        "bert-as-a-service: vectors of texts over HTTP, from any layers and pooling",
        elsewhere="a server: tests/serve",
    ),
    Fact("S2", "E854", "every task over HTTP", elsewhere="a server: tests/serve"),
]
mistakes = [
    Fact("!E525", "E525", "says additive attention is better; only without the scale", absent="it is part of M20"),
]
