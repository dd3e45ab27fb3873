"""Claims of the source documents that `bertkit facts` does not run: what is not implemented, and what needs more.

They are listed so that no claim is left out silently.
"""

from bertkit.facts.fact import Fact

GLOSSARY = "it is named only: docs/glossary.md"

# (number, source, claim, what bertkit does not have)
ABSENT = (
    ("M21", "B22-26", "the difference between an auto-encoder and an encoder-decoder", GLOSSARY),
    ("P23", "E845", "VideoBERT", GLOSSARY),
)
# (number, source, claim, what it needs, and where that is)
ELSEWHERE = (
    (
        "P15",
        "D968",
        "ELECTRA beats BERT in small configurations",
        "ten minutes each on a GPU: benchmarks/results/2026-11-15-mlm-electra-h200.json",
    ),
    (
        "P18b",
        "D516, B71",
        "with fewer targets, masked words need more text than next words, but not as much more",
        "minutes on a GPU: benchmarks/family.py, rows roberta and gpt",
    ),
    (
        "P19",
        "E833-838, D231",
        "pre-training on a domain's text improves tasks of that domain",
        "minutes on a GPU: benchmarks/domain.py",
    ),
    (
        "P20b",
        "E840-842",
        "a model of two languages finds translations that nobody showed it",
        "minutes on a GPU: benchmarks/languages.py",
    ),
    ("F16", "E854", "sentiment behind an API, in a container", "a container: deploy/Dockerfile"),
    (
        "S1",
        "E883-887",
        "bert-as-a-service: vectors of texts over HTTP, any layers, any pooling",
        "a server: tests/serve",
    ),
    ("S2", "E854", "every task over HTTP", "a server: tests/serve"),
)
facts = [
    *(Fact(number, source, claim, absent=reason) for number, source, claim, reason in ABSENT),
    *(Fact(number, source, claim, elsewhere=needed) for number, source, claim, needed in ELSEWHERE),
]
