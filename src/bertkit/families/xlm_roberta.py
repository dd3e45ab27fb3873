"""XLM-RoBERTa and CamemBERT (Conneau, Martin 2019): RoBERTa for many languages and for French, with Unigram pieces."""

from dataclasses import replace

from bertkit.families.family import CONFIG_DEFAULTS
from bertkit.families.roberta import ROBERTA

XLM_ROBERTA = replace(
    ROBERTA,
    name="xlm-roberta",
    class_stem="XLMRoberta",
    tokenizer="Unigram",
    settings={**ROBERTA.settings, "vocab_size": 250002},
    config_defaults=CONFIG_DEFAULTS,
    causal_class="XLMRobertaForCausalLM",
)
CAMEMBERT = replace(
    XLM_ROBERTA,
    name="camembert",
    class_stem="Camembert",
    settings={**ROBERTA.settings, "vocab_size": 32005},
    causal_class="CamembertForCausalLM",
)
