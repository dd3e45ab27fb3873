import pytest

from bertkit.config import BertConfig, Parts, family_config, override, read_config
from bertkit.errors import RequestError
from bertkit.settings import flat, toml_lines


def test_override_changes_numbers_and_parts():
    config = override(BertConfig(), "depth=6", "position=rotary", "bias=false", "embedding_width=128", "dropout=0")
    assert (config.depth, config.parts.position, config.parts.bias, config.dropout) == (6, "rotary", False, 0.0)
    assert config.embedding_width == 128
    assert override(config, "embedding_width=none").embedding_width is None


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("dept=4", "unknown setting 'dept'; choose from: .*depth"),
        ("depth=four", "depth=four is not a whole number"),
        ("depth", "setting 'depth' needs a value"),
        ("bias=maybe", "bias=maybe is not true or false"),
        ("position=polar", "unknown position 'polar'; choose from: learned"),
        ("width=100", "width=100 must divide evenly by heads=12"),
        ("depth=0", "depth=0 must be at least 1"),
        ("dropout=1.5", "dropout=1.5 must be in"),
        ("pad_id=99999", "pad_id=99999 must be under vocab_size=30522"),
        ("parts=x", "unknown setting 'parts'"),
    ],
)
def test_wrong_settings_stop_at_the_door(pair, sentence):
    with pytest.raises(RequestError, match=sentence):
        override(BertConfig(), pair)


def test_unknown_rows_list_the_known():
    with pytest.raises(RequestError, match="unknown family 'gpt'; choose from: albert, awd-lstm, bert"):
        family_config("gpt")
    with pytest.raises(RequestError, match="unknown size 'huge'"):
        family_config("bert", "huge")


def test_rotary_needs_even_heads():
    with pytest.raises(RequestError, match="must be even"):
        BertConfig(width=9, heads=3, parts=Parts(position="rotary"))


@pytest.mark.parametrize("parts", [{"window": 8}, {"norm": "pre"}])
def test_one_shared_layer_cannot_differ_by_place(parts):
    with pytest.raises(RequestError, match="shared_layers=true means one layer for all"):
        Parts(shared_layers=True, **parts)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: BertConfig(width=768.0), "width=768.0 is not a whole number"),
        (lambda: BertConfig(depth=True), "depth=True is not a whole number"),
        (lambda: BertConfig(init_std=float("nan")), "init_std=nan must be in"),
        (lambda: BertConfig(init_std=-1.0), "init_std=-1.0 must be in"),
        (lambda: BertConfig(family="foo"), "unknown family 'foo'"),
        (lambda: BertConfig(embedding_width=-5), "embedding_width=-5 must be at least 1"),
        (lambda: Parts(window="x"), "window='x' is not a whole number"),
        (lambda: Parts(window=-4), "window=-4 must be at least 2"),
        (lambda: Parts(global_every=0), "global_every=0 must be at least 1"),
        (lambda: Parts(local_theta=0), "local_theta=0 must be over 0"),
        (lambda: Parts(theta=None), "theta=None is not a number"),
        (lambda: Parts(pooling="cls"), "unknown pooling 'cls'; choose from: first, last, mean"),
    ],
)
def test_values_of_the_wrong_kind(build, sentence):
    with pytest.raises(RequestError, match=sentence):
        build()


def test_cleared_fields_survive_toml(tmp_path):
    path = tmp_path / "model.toml"
    for family, change in (("modernbert", "window=none"), ("albert", "embedding_width=none")):
        config = override(family_config(family), change)
        path.write_text(toml_lines(flat(config)))
        assert read_config(path) == config


def test_torn_toml_names_its_file(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text("depth = [1")
    with pytest.raises(RequestError, match="model.toml is not a readable TOML file"):
        read_config(path)
    path.write_text("dept = 3")
    with pytest.raises(RequestError, match="model.toml: unknown setting 'dept'"):
        read_config(path)
