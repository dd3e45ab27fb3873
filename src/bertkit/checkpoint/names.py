"""Tensor names, ours and Hugging Face's, in two columns. No code knows a name that is not here.

A name stands for its `.weight` and `.bias`; `{i}` counts layers; a tuple is joined row upon row (we keep queries,
keys and values in one matrix). Left of an encoder table stands what follows `encoder.`, right what follows the base
model's own prefix (`bert.`); in the tables of heads both sides are whole names.
"""

from collections.abc import Mapping

Names = Mapping[str, str | tuple[str, ...]]

_EMBEDDINGS: Names = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}

_BERT_LAYER: Names = {
    "layers.{i}.attention.qkv": (
        "encoder.layer.{i}.attention.self.query",
        "encoder.layer.{i}.attention.self.key",
        "encoder.layer.{i}.attention.self.value",
    ),
    "layers.{i}.attention.out": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.feed_forward.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.feed_forward.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}

_ALBERT = "encoder.albert_layer_groups.0.albert_layers.{i}"
_DISTIL = "transformer.layer.{i}"

ENCODERS: dict[str, Names] = {
    # "widen" is no part of Hugging Face's BERT; checkpoints in Google's format have it under this name.
    "bert": {**_EMBEDDINGS, "embeddings.widen": "encoder.embedding_hidden_mapping_in", **_BERT_LAYER},
    "roberta": {**_EMBEDDINGS, **_BERT_LAYER},
    "electra": {**_EMBEDDINGS, "embeddings.widen": "embeddings_project", **_BERT_LAYER},
    "albert": {
        **_EMBEDDINGS,
        "embeddings.widen": "encoder.embedding_hidden_mapping_in",
        "layers.{i}.attention.qkv": (
            f"{_ALBERT}.attention.query",
            f"{_ALBERT}.attention.key",
            f"{_ALBERT}.attention.value",
        ),
        "layers.{i}.attention.out": f"{_ALBERT}.attention.dense",
        "layers.{i}.attention_norm": f"{_ALBERT}.attention.LayerNorm",
        "layers.{i}.feed_forward.up": f"{_ALBERT}.ffn",
        "layers.{i}.feed_forward.down": f"{_ALBERT}.ffn_output",
        "layers.{i}.feed_forward_norm": f"{_ALBERT}.full_layer_layer_norm",
    },
    "distilbert": {
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention.qkv": (
            f"{_DISTIL}.attention.q_lin",
            f"{_DISTIL}.attention.k_lin",
            f"{_DISTIL}.attention.v_lin",
        ),
        "layers.{i}.attention.out": f"{_DISTIL}.attention.out_lin",
        "layers.{i}.attention_norm": f"{_DISTIL}.sa_layer_norm",
        "layers.{i}.feed_forward.up": f"{_DISTIL}.ffn.lin1",
        "layers.{i}.feed_forward.down": f"{_DISTIL}.ffn.lin2",
        "layers.{i}.feed_forward_norm": f"{_DISTIL}.output_layer_norm",
    },
    "modernbert": {
        "embeddings.word": "embeddings.tok_embeddings",
        "embeddings.norm": "embeddings.norm",
        "layers.{i}.attention_norm": "layers.{i}.attn_norm",
        "layers.{i}.attention.qkv": "layers.{i}.attn.Wqkv",
        "layers.{i}.attention.out": "layers.{i}.attn.Wo",
        "layers.{i}.feed_forward_norm": "layers.{i}.mlp_norm",
        "layers.{i}.feed_forward.up": "layers.{i}.mlp.Wi",
        "layers.{i}.feed_forward.down": "layers.{i}.mlp.Wo",
        "norm": "final_norm",
    },
}

PREFIXES = {
    "bert": "bert.",
    "roberta": "roberta.",
    "electra": "electra.",
    "albert": "albert.",
    "distilbert": "distilbert.",
    "modernbert": "model.",
}

_MASKED = "heads.masked_word"
_TAG = {"heads.tag.out": "classifier"}
_ANSWER = {"heads.answer.out": "qa_outputs"}

# What each head reads under, for each family that has it. "" is the base model with its pooler.
HEADS: dict[str, dict[str, Names]] = {
    "bert": {
        "": {"pooler.dense": "bert.pooler.dense"},
        "masked_word": {
            f"{_MASKED}.dense": "cls.predictions.transform.dense",
            f"{_MASKED}.norm": "cls.predictions.transform.LayerNorm",
            f"{_MASKED}.decoder": "cls.predictions",
        },
        "next_sentence": {"pooler.dense": "bert.pooler.dense", "heads.next_sentence.out": "cls.seq_relationship"},
        "classify": {"pooler.dense": "bert.pooler.dense", "heads.classify.out": "classifier"},
        "choose": {"pooler.dense": "bert.pooler.dense", "heads.choose.out": "classifier"},
        "tag": _TAG,
        "answer": _ANSWER,
    },
    "roberta": {
        "": {"pooler.dense": "roberta.pooler.dense"},
        "masked_word": {
            f"{_MASKED}.dense": "lm_head.dense",
            f"{_MASKED}.norm": "lm_head.layer_norm",
            f"{_MASKED}.decoder": "lm_head",
        },
        "classify": {"pooler.dense": "classifier.dense", "heads.classify.out": "classifier.out_proj"},
        "choose": {"pooler.dense": "roberta.pooler.dense", "heads.choose.out": "classifier"},
        "tag": _TAG,
        "answer": _ANSWER,
    },
    "electra": {
        "": {},
        "masked_word": {
            f"{_MASKED}.dense": "generator_predictions.dense",
            f"{_MASKED}.norm": "generator_predictions.LayerNorm",
            f"{_MASKED}.decoder": "generator_lm_head",
        },
        "replaced_token": {
            "heads.replaced_token.dense": "discriminator_predictions.dense",
            "heads.replaced_token.out": "discriminator_predictions.dense_prediction",
        },
        "classify": {"pooler.dense": "classifier.dense", "heads.classify.out": "classifier.out_proj"},
        "choose": {"pooler.dense": "sequence_summary.summary", "heads.choose.out": "classifier"},
        "tag": _TAG,
        "answer": _ANSWER,
    },
    "albert": {
        "": {"pooler.dense": "albert.pooler"},
        "masked_word": {
            f"{_MASKED}.dense": "predictions.dense",
            f"{_MASKED}.norm": "predictions.LayerNorm",
            f"{_MASKED}.decoder": "predictions",
        },
        "next_sentence": {"pooler.dense": "albert.pooler", "heads.next_sentence.out": "sop_classifier.classifier"},
        "classify": {"pooler.dense": "albert.pooler", "heads.classify.out": "classifier"},
        "choose": {"pooler.dense": "albert.pooler", "heads.choose.out": "classifier"},
        "tag": _TAG,
        "answer": _ANSWER,
    },
    "distilbert": {
        "": {},
        "masked_word": {
            f"{_MASKED}.dense": "vocab_transform",
            f"{_MASKED}.norm": "vocab_layer_norm",
            f"{_MASKED}.decoder": "vocab_projector",
        },
        "classify": {"pooler.dense": "pre_classifier", "heads.classify.out": "classifier"},
        "choose": {"pooler.dense": "pre_classifier", "heads.choose.out": "classifier"},
        "tag": _TAG,
        "answer": _ANSWER,
    },
    "modernbert": {
        "": {},
        "masked_word": {
            f"{_MASKED}.dense": "head.dense",
            f"{_MASKED}.norm": "head.norm",
            f"{_MASKED}.decoder": "decoder",
        },
        **{
            task: {
                "pooler.dense": "head.dense",
                "pooler.norm": "head.norm",
                f"heads.{task}.out": "classifier",
            }
            for task in ("classify", "choose", "tag", "answer")
        },
    },
}

# Hugging Face's class for each set of heads.
_TASKS = {
    (): "Model",
    ("masked_word",): "ForMaskedLM",
    ("classify",): "ForSequenceClassification",
    ("choose",): "ForMultipleChoice",
    ("tag",): "ForTokenClassification",
    ("answer",): "ForQuestionAnswering",
}
_STEMS = {
    "bert": "Bert",
    "roberta": "Roberta",
    "electra": "Electra",
    "albert": "Albert",
    "distilbert": "DistilBert",
    "modernbert": "ModernBert",
}

CLASSES: dict[str, dict[tuple[str, ...], str]] = {
    family: {heads: stem + task for heads, task in _TASKS.items()} for family, stem in _STEMS.items()
}
CLASSES["bert"] |= {
    ("masked_word", "next_sentence"): "BertForPreTraining",
    ("next_sentence",): "BertForNextSentencePrediction",
}
CLASSES["albert"] |= {("masked_word", "next_sentence"): "AlbertForPreTraining"}
CLASSES["electra"] |= {
    ("replaced_token",): "ElectraForPreTraining",
    ("masked_word", "replaced_token"): "ElectraForMaskedLM",  # which leaves the other head in the file
}

# Families whose config.json has `is_decoder` (left to right), and the class that then has the head for words.
CAUSAL_CLASSES = {"bert": "BertLMHeadModel", "roberta": "RobertaForCausalLM", "electra": "ElectraForCausalLM"}

# The heads of each class, by family and name.
HEADS_OF_CLASS: dict[str, dict[str, tuple[str, ...]]] = {
    family: {name: heads for heads, name in rows.items()} for family, rows in CLASSES.items()
}
for _family, _name in CAUSAL_CLASSES.items():
    HEADS_OF_CLASS[_family][_name] = ("masked_word",)

# Endings and prefixes of other times: LayerNorms of 2018, wrappers of training scripts.
OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}
WRAPPERS = ("module.", "_orig_mod.", "_forward_module.", "model.")

# Copies of a tensor under a second name: used only when the first name is missing.
TWIN_NAMES = {
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
    "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight",
    "decoder.weight": "model.embeddings.tok_embeddings.weight",
}
