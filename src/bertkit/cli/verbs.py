"""The verbs of the command line, grouped as `bertkit --help` shows them."""

from bertkit.cli.common import print_note

# group -> verb -> (summary, example)
PANELS = {
    "data": {
        "vocab": ("train a WordPiece vocabulary", "bertkit vocab books/*.txt --size 30522 --out vocab/"),
        "shards": ("tokenize a corpus into shards", "bertkit shards books/*.txt --vocab vocab/ --out shards/"),
        "tokenize": ("show the tokens of a text", 'bertkit tokenize "An unbelievable story."'),
        "check": ("check data before training", "bertkit check train.tsv --dev dev.tsv"),
    },
    "train": {
        "pretrain": ("pre-train a model on shards", "bertkit pretrain tiny-cpu shards=shards/ --out run/"),
        "recipes": ("list the recipes for pre-training", "bertkit recipes tiny-cpu > mine.toml"),
        "finetune": ("fine-tune on labeled examples", "bertkit finetune classify --train a.tsv --dev b.tsv --out run/"),
        "evaluate": ("score a model on labeled examples", "bertkit evaluate run/model test.tsv"),
    },
    "use": {
        "predict": ("answers of a fine-tuned model", 'bertkit predict run/ "What a lovely film."'),
        "embed": ("compute vectors of texts", "bertkit embed texts.txt --model model/ --out vectors.npy"),
        "index": ("index documents for search", "bertkit index corpus.jsonl --out index/"),
        "search": ("find documents of an index", 'bertkit search index/ "lost my card"'),
        "mine": ("hard negatives for pairs of texts", "bertkit mine pairs.tsv --corpus texts.txt --out hard.jsonl"),
        "fill": ("predict the missing words of a text", 'bertkit fill "Paris is the ___ of France."'),
        "follows": ("whether a text follows another", 'bertkit follows "She left." "It rained." --model run/model'),
        "replaced": ("which words of a text look replaced", 'bertkit replaced "The chef ate it." --model electra/'),
        "write": ("generate text", 'bertkit write "Once upon a time" --model gpt2/'),
        "serve": ("serve models over HTTP", "bertkit serve model/ ner=run/model --port 8000"),
        "bench": ("measure a running server", "bertkit bench http://127.0.0.1:8000 --clients 1,16,64"),
    },
    "understand": {
        "look": ("show what a model computes, as page", 'bertkit look "The animal was tired."'),
        "why": ("which words lead to a prediction", 'bertkit why "What a lovely film." --model run/model'),
        "heads": ("what each attention head attends to", 'bertkit heads "The animal was tired." --model model/'),
        "probe": ("what probes find in each layer", "bertkit probe train.conllu dev.conllu --task pos"),
        "senses": ("map the uses of a word", "bertkit senses bank books/*.txt --out bank.html"),
        "word2vec": ("train one vector per word", "bertkit word2vec shards/ --method skip-gram --out vectors/"),
        "facts": ("check claims about BERT", "bertkit facts"),
    },
    "models": {
        "info": ("describe a model folder", "bertkit info run/model"),
        "download": ("fetch a Hugging Face model", "bertkit download google-bert/bert-base-uncased"),
        "convert": ("convert to a model folder, or ONNX", "bertkit convert uncased_L-12_H-768_A-12/ model/"),
    },
}
VERBS = {verb: texts for verbs in PANELS.values() for verb, texts in verbs.items()}
# verb of version 0.1 -> how it is written now
OLD_SPELLINGS = {"vectors": ["word2vec"], "glue": ["finetune", "glue"]}
# words that people try -> what does it here
OTHER_WORDS = {
    "train": "'bertkit finetune' trains on labeled examples, 'bertkit pretrain' on plain text",
}
# verb -> option of version 0.1 -> how it is written now
OLD_OPTIONS = {
    "heads": {"--link": "--from-to"},
    "probe": {"--what": "--task"},
    "senses": {"--most": "--max-uses"},
}


def help_text() -> str:
    """The text of `bertkit --help`."""
    lines = ["bertkit: a BERT from raw text to a running service"]
    for panel, verbs in PANELS.items():
        lines += ["", panel, *(f"  {verb:<10} {summary:<36} {example}" for verb, (summary, example) in verbs.items())]
    lines += ["", "bertkit VERB --help says more. bertkit completion bash (or zsh, fish) prints a completion script."]
    lines += ["Exit 0: done, 1: the work failed, 2: the request was wrong."]
    return "\n".join(lines)


def note_old_spelling(old: str, new: str) -> None:
    """Print how a command is written now."""
    print_note(f"'bertkit {old}' is now 'bertkit {new}'; the old spelling goes in 0.3")
