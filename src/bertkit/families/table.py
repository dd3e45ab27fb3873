"""FAMILIES: every published family that bertkit loads and saves in Hugging Face's layout."""

from bertkit.families.albert import ALBERT
from bertkit.families.bert import BERT
from bertkit.families.distilbert import DISTILBERT
from bertkit.families.electra import ELECTRA
from bertkit.families.family import Family
from bertkit.families.modernbert import MODERNBERT
from bertkit.families.roberta import ROBERTA
from bertkit.families.xlm_roberta import CAMEMBERT, XLM_ROBERTA

FAMILIES: dict[str, Family] = {
    family.name: family for family in (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ALBERT, ELECTRA, DISTILBERT, MODERNBERT)
}
