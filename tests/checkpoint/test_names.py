"""The tables of names: a bijection, complete, and true to transformers' classes."""

from pathlib import Path

import pytest
import torch
import transformers

from bertkit.checkpoint.bundled import bundled_folder, model_name
from bertkit.checkpoint.hugging_face import clean_names, state_names
from bertkit.config import family_config
from bertkit.families.family import FAMILIES
from bertkit.model.model import BertModel


def shape_only(family, heads):
    with torch.device("meta"):
        return BertModel(family_config(family, "tiny", vocab_size=50), dict.fromkeys(heads, 3))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_both_columns_are_unique(family):
    for heads in FAMILIES[family].classes:
        pairs = list(state_names(shape_only(family, heads)))
        ours = [name for name, _ in pairs]
        theirs = [name for _, names in pairs for name in names]
        assert len(ours) == len(set(ours))
        assert len(theirs) == len(set(theirs))


@pytest.mark.parametrize("name", [name for family in FAMILIES.values() for name in family.heads_of_class])
def test_every_class_exists_in_transformers(name):
    assert issubclass(getattr(transformers, name), transformers.PreTrainedModel)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"),
        ("embeddings.LayerNorm.beta", "bert.embeddings.LayerNorm.bias"),
        ("module.bert.pooler.dense.weight", "bert.pooler.dense.weight"),
        ("_orig_mod.encoder.layer.0.output.dense.bias", "bert.encoder.layer.0.output.dense.bias"),
        ("pooler.dense.bias", "bert.pooler.dense.bias"),
        ("cls.predictions.bias", "cls.predictions.bias"),
        ("classifier.weight", "classifier.weight"),
    ],
)
def test_old_names_become_todays(old, new):
    assert clean_names({old: torch.zeros(1)}, "bert") == {old: new}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (bundled_folder(), "bundled"),
        (bundled_folder() / "sentences", "sentences"),
        (Path("models/my-bert"), "my-bert"),
        (Path("my-run/model"), "my-run"),
    ],
)
def test_a_model_is_called_by_its_folder(given, name):
    assert model_name(given) == name
