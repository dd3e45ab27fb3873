"""Folders in all their forms: old names, shards, pickles, half of a model, mixtures of parts."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.config import Parts, family_config
from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.model.pooling import EmbedSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

PIECES = [*SPECIALS, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
BATCH = Batch.pack([[2, 6, 7, 3], [2, 9, 3]], [[0, 0, 1, 1], [0, 0, 0]])


@pytest.fixture
def checkpoint() -> Checkpoint:
    model = new_model(family_config("bert", "tiny", vocab_size=len(PIECES)), {"masked_word": None}, pooler=True)
    return Checkpoint(model=model.eval(), tokenizer=Tokenizer.from_vocab(PIECES))


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    save_checkpoint(checkpoint, tmp_path / "model")
    return tmp_path / "model"


def same_answers(one, two):
    with torch.no_grad():
        torch.testing.assert_close(one.model(BATCH), two.model(BATCH), atol=0, rtol=0)


def rewrite(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_holds_everything(folder, checkpoint):
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "bertkit.json"}
    loaded = load_checkpoint(folder)
    same_answers(loaded, checkpoint)
    assert loaded.tokenizer.encode("abc").ids == checkpoint.tokenizer.encode("abc").ids
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs("abc", "de")["input_ids"] == list(checkpoint.tokenizer.encode("abc", "de").ids)


def test_others_may_read_what_they_may_read_of_other_files(folder):
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode


def test_old_names_load(folder, checkpoint):
    """google bert's LayerNorm.gamma and .beta, and a wrapper's prefix."""
    tensors = load_file(folder / "model.safetensors")
    old = {
        "module." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for name, t in tensors.items()
    }
    assert any(name.endswith("gamma") for name in old)
    save_file(old, folder / "model.safetensors")
    loaded = load_checkpoint(folder)
    same_answers(loaded, checkpoint)
    assert not loaded.report.dropped
    assert not loaded.report.new


def test_sharded_safetensors_load(folder, checkpoint):
    theirs = transformers.BertForMaskedLM.from_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    theirs.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    loaded = load_checkpoint(folder)
    same_answers(loaded, checkpoint)

    victim = sorted(folder.glob("model-*.safetensors"))[1]
    victim.rename(folder / "elsewhere")
    with pytest.raises(RequestError, match=f"{victim.name} is missing, though model.safetensors.index.json needs it"):
        load_checkpoint(folder)


def test_an_index_that_reaches_outside_is_refused(folder):
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"a": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RequestError, match="points outside its folder"):
        load_checkpoint(folder)


@pytest.mark.parametrize("wrapped", [None, "state_dict", "model"])
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_pickled_weights_load(folder, checkpoint, wrapped, legacy):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    data = {wrapped: tensors, "epoch": 3} if wrapped else tensors
    torch.save(data, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    same_answers(load_checkpoint(folder), checkpoint)


class Evil:
    """A pickle that wants to run code."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_pickle_that_runs_code_does_not(folder, legacy):
    (folder / "model.safetensors").unlink()
    sign = folder.parent / "it-ran"
    torch.save({"x": Evil(sign)}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(RequestError, match="would run code when loaded, so it was not; .*model.safetensors"):
        load_checkpoint(folder)
    assert not sign.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_truncated_file_is_one_sentence(folder, name):
    tensors = load_file(folder / "model.safetensors")
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / name)
    whole = (folder / name).read_bytes()
    for length in (0, 1, 7, 8, 9, 100, 5000, len(whole) // 2, len(whole) - 1):
        (folder / name).write_bytes(whole[:length])
        with pytest.raises(RequestError, match=name) as caught:
            load_checkpoint(folder)
        assert "\n" not in str(caught.value)


def test_hostile_safetensors_headers(folder):
    path = folder / "model.safetensors"
    for data in (
        (2**62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        b"\xff" * 64,
        (80).to_bytes(8, "little")
        + b'{"a":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,4]}}'.ljust(80)
        + b"1234",
    ):
        path.write_bytes(data)
        with pytest.raises(RequestError, match="truncated or corrupt"):
            load_checkpoint(folder)


def test_shapes_must_fit(folder):
    rewrite(folder, hidden_size=130, num_attention_heads=2)
    with pytest.raises(RequestError, match=r"has shape \(57, 128\) in the file, but config.json makes it \(57, 130\)"):
        load_checkpoint(folder)


def test_half_an_encoder_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    kept = {name: t for name, t in tensors.items() if ".layer.1." not in name}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(
        RequestError, match="the file lacks 12 tensors of the encoder, the first being encoder.layers.1"
    ):
        load_checkpoint(folder)


@pytest.mark.parametrize("change", [{"num_hidden_layers": 1}, {"type_vocab_size": 0}])
def test_more_encoder_than_the_config_has_room_for(folder, change):
    rewrite(folder, **change)
    with pytest.raises(RequestError, match="tensors of the encoder that config.json has no place for"):
        load_checkpoint(folder)


def test_part_of_a_head_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["cls.predictions.transform.dense.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(RequestError, match=f"{folder}: the file holds only a part of its head"):
        load_checkpoint(folder)
    assert load_checkpoint(folder, heads={"masked_word": None}).report.new, "asked for, it is made anew"


@pytest.mark.parametrize(
    "strange",
    [
        lambda t: t.to(torch.complex64),
        lambda t: t.to(torch.int32),
        lambda t: t.bool(),
        lambda t: t.double() * 1e300,
        lambda t: t.to(torch.float8_e4m3fn),
        lambda t: t.to_sparse(),
    ],
)
def test_strange_numbers_are_refused(folder, strange):
    tensors = load_file(folder / "model.safetensors")
    name = "bert.embeddings.word_embeddings.weight"
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, name: strange(tensors[name] + 1), 5: torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(RequestError, match=f"{name}|cannot|corrupt"):
        load_checkpoint(folder)


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"])
def test_huge_sizes_are_refused_at_once(folder, key):
    rewrite(folder, **{key: 10**18})
    with pytest.raises(RequestError, match="must be at most"):
        load_checkpoint(folder)


def test_a_pointer_instead_of_the_file(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(RequestError, match="is a Git LFS pointer, not the file itself"):
        load_checkpoint(folder)


def test_links_that_lead_nowhere(folder):
    (folder / "modules.json").symlink_to("nowhere.json")
    with pytest.raises(RequestError, match="modules.json is a link that leads nowhere"):
        load_checkpoint(folder)


def test_a_full_disk_while_saving_weights(checkpoint, tmp_path):
    """RLIMIT_FSIZE in a child: safetensors reports it with an error of its own."""
    save_checkpoint(checkpoint, tmp_path / "small")
    code = (
        "import resource, signal, sys\n"
        "from bertkit.cli.main import main\n"
        "import bertkit.checkpoint.save_load\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "main(sys.argv[1:])\n"
    )
    arguments = ["convert", str(tmp_path / "small"), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "out was not written" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_a_vocabulary_that_is_far_too_small_is_noted(folder, tmp_path):
    Tokenizer.from_vocab(PIECES[:20]).save(tmp_path)
    with pytest.warns(BertkitWarning, match="the tokenizer has 20 entries for the model's 57 rows"):
        load_checkpoint(folder, tokenizer=tmp_path)


def test_not_a_number_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    name = next(iter(tensors))
    tensors[name].view(-1)[5] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(RequestError, match=f"{name} holds NaN or infinity"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_labels": 10**9, "architectures": ["BertForTokenClassification"]}, "num_labels=1000000000 must be"),
        ({"model_type": "t5"}, "unknown model_type 't5'; choose from: albert, bert"),
        ({"model_type": None, "architectures": ["T5Model"]}, "unknown model_type 'T5Model'"),
        ({"hidden_size": float("inf")}, "hidden_size=inf must be a number"),
        ({"num_hidden_layers": 2.5}, "depth=2.5 is not a whole number"),
        ({"num_labels": "abc"}, "num_labels='abc'"),
        ({"hidden_size": "128"}, "hidden_size='128' must be a number"),
        ({"hidden_size": -4}, "width=-4 must be at least 1"),
        ({"num_attention_heads": 3}, "width=128 must divide evenly by heads=3"),
        ({"hidden_act": "mish"}, "unknown hidden_act 'mish'; choose from: gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key' is not supported"),
        ({"is_decoder": "yes"}, "is_decoder='yes' is not supported"),
        ({"is_decoder": True, "add_cross_attention": True}, "add_cross_attention=True is not supported"),
        ({"hidden_dropout_prob": 1.0}, "dropout=1.0 must be in"),
        ({"vocab_size": 10}, "has shape"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=false is not supported"),
    ],
)
def test_impossible_configs_are_one_sentence(folder, changes, sentence):
    rewrite(folder, **changes)
    with pytest.raises(RequestError, match=sentence) as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"local_attention": "abc"}, "window='abc' is not a whole number"),
        ({"local_attention": -4}, "window=-4 must be at least 2"),
        ({"global_attn_every_n_layers": 0, "layer_types": None}, "global_every=0 must be at least 1"),
        ({"global_attn_every_n_layers": "3", "layer_types": None}, "global_every='3' is not a whole number"),
        ({"layer_types": 5}, "layer_types=5 must be a list"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 3 layers"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types is not 'full_attention' at every"),
        ({"rope_parameters": [1]}, "rope_parameters=.* must be an object"),
        ({"rope_parameters": None, "local_rope_theta": 0}, "local_theta=0 must be over 0"),
        ({"classifier_pooling": "max"}, "pooling='max' is unknown"),
        ({"norm_bias": True}, "norm_bias=True is not supported"),
        ({"is_decoder": True}, "is_decoder=True is not supported for modernbert"),
    ],
)
def test_impossible_modernbert_configs(changes, sentence, tmp_path):
    config = family_config("modernbert", "tiny", vocab_size=60, depth=3)
    save_checkpoint(Checkpoint(model=new_model(config)), tmp_path / "out")
    rewrite(tmp_path / "out", **changes)
    with pytest.raises(RequestError, match=sentence):
        load_checkpoint(tmp_path / "out")


def test_a_config_of_2019_has_no_model_type(folder, checkpoint):
    rewrite(folder, model_type=None)
    same_answers(load_checkpoint(folder), checkpoint)
    rewrite(folder, model_type=None, architectures=None, hidden_size=128.0)
    same_answers(load_checkpoint(folder), checkpoint)


def test_stacked_wrappers_and_doubled_names(folder, checkpoint):
    tensors = load_file(folder / "model.safetensors")
    for prefix in ("_orig_mod.module.", "module._orig_mod.", "model."):
        save_file({prefix + name: t for name, t in tensors.items()}, folder / "model.safetensors")
        same_answers(load_checkpoint(folder), checkpoint)
    name = "bert.embeddings.LayerNorm.weight"
    save_file({**tensors, "bert.embeddings.LayerNorm.gamma": torch.full((128,), 5.0)}, folder / "model.safetensors")
    with pytest.raises(RequestError, match=f"the file holds {name} under two names"):
        load_checkpoint(folder)


def test_an_untied_decoder_is_not_called_a_copy(folder):
    tensors = load_file(folder / "model.safetensors")
    word = tensors["bert.embeddings.word_embeddings.weight"]
    save_file({**tensors, "cls.predictions.decoder.weight": word + 1}, folder / "model.safetensors")
    why = load_checkpoint(folder).report.dropped["cls.predictions.decoder.weight"]
    assert why == "the model uses bert.embeddings.word_embeddings.weight in its place"


def test_settings_of_other_tools_travel_on(folder, tmp_path):
    rewrite(folder, problem_type="multi_label_classification", classifier_dropout=0.3)
    save_checkpoint(load_checkpoint(folder), tmp_path / "again")
    kept = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (kept["problem_type"], kept["classifier_dropout"]) == ("multi_label_classification", 0.3)


def test_the_length_travels_without_a_tokenizer(checkpoint, tmp_path):
    save_checkpoint(replace(checkpoint, tokenizer=None, max_length=33), tmp_path / "out")
    assert load_checkpoint(tmp_path / "out").max_length == 33


@pytest.mark.parametrize("limit", ["abc", -1, 2, True])
def test_impossible_lengths(folder, limit):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": limit}))
    with pytest.raises(RequestError, match="a length limit of .* leaves no room"):
        load_checkpoint(folder)


def test_strange_settings_of_our_own(folder, checkpoint, tmp_path):
    path = folder / "bertkit.json"
    for embed in ("x", {"pooling": "mean"}, {"layers": [1], "extra": 2}, {"layers": [1], "prompts": "x"}):
        path.write_text(json.dumps({"embed": embed}))
        with pytest.raises(RequestError, match="embed is not as bertkit writes it"):
            load_checkpoint(folder)
    config = replace(checkpoint.model.config, parts=Parts(position="rotary"))
    save_checkpoint(Checkpoint(model=new_model(config, {"tag": 3})), tmp_path / "own")
    for heads in ([1], {"tag": "x"}, {"tag": -1}):
        rewrite(tmp_path / "own", heads=heads)
        with pytest.raises(RequestError, match="must name heads and their outputs"):
            load_checkpoint(tmp_path / "own")
    rewrite(tmp_path / "own", heads={"tag": 3}, parts={"window": "x"})
    with pytest.raises(RequestError, match="window='x' is not a whole number"):
        load_checkpoint(tmp_path / "own")


def test_prompts_of_sentence_folders(checkpoint, tmp_path):
    import sentence_transformers

    import bertkit

    settings = EmbedSettings(prefix="query: ", normalize=True)
    save_checkpoint(replace(checkpoint, model=base(checkpoint), embed=settings), tmp_path / "out")
    (tmp_path / "out" / "bertkit.json").unlink()
    ours = bertkit.load(tmp_path / "out")
    assert ours.checkpoint.embed == replace(settings, prompts=(("default", "query: "),))
    expected = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(["abc", "de"])
    np.testing.assert_allclose(ours.embed(["abc", "de"]), expected, atol=1e-5)
    (tmp_path / "out" / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(RequestError, match="do_lower_case=true is not supported"):
        load_checkpoint(tmp_path / "out")


def test_tensorflow_files_beside_a_whole_folder_are_left_alone(folder, checkpoint, simbert):
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        shutil.copy(simbert / name, folder / name)
    same_answers(load_checkpoint(folder), checkpoint)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "null", '{"a":' * 100_000])
def test_torn_json_names_its_file(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(RequestError, match="config.json"):
        load_checkpoint(folder)


def test_missing_things_are_named(folder, tmp_path):
    with pytest.raises(RequestError, match="nowhere is not a folder"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="config.json is not a folder"):
        load_checkpoint(folder / "config.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="config.json does not exist"):
        load_checkpoint(tmp_path / "empty")
    (folder / "model.safetensors").unlink()
    with pytest.raises(RequestError, match="holds no weights; bertkit looks for model.safetensors"):
        load_checkpoint(folder)


def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    other = [*PIECES, "extra"]
    Tokenizer.from_vocab(other).save(tmp_path)
    with pytest.raises(RequestError, match="tokenizer has 58 entries but the model only 57 rows"):
        load_checkpoint(folder, tokenizer=tmp_path)


def test_a_new_head_is_new_and_the_old_one_dropped(folder):
    """SPEC P25: loading a masked-word model as a classifier says what is lost and what is made."""
    loaded = load_checkpoint(folder, heads={"classify": 3})
    assert loaded.report.new == ("heads.classify.out.weight", "heads.classify.out.bias")
    assert all(name.startswith("cls.predictions") for name in loaded.report.dropped)
    assert len(loaded.report.dropped) == 5
    assert "5 dropped, 2 newly made" in str(loaded.report)
    again = load_checkpoint(folder, heads={"classify": 3})
    other = load_checkpoint(folder, heads={"classify": 3}, seed=1)
    weight = "heads.classify.out.weight"
    assert torch.equal(loaded.model.state_dict()[weight], again.model.state_dict()[weight])
    assert not torch.equal(loaded.model.state_dict()[weight], other.model.state_dict()[weight])


def test_a_class_whose_head_is_not_in_the_file(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if name.startswith("bert.")}, folder / "model.safetensors")
    loaded = load_checkpoint(folder)
    assert not loaded.model.heads, "BertForMaskedLM by name, but there is nothing to fill with"


def test_half_precision_becomes_float32(folder, checkpoint):
    tensors = load_file(folder / "model.safetensors")
    save_file({name: t.to(torch.bfloat16) for name, t in tensors.items()}, folder / "model.safetensors")
    loaded = load_checkpoint(folder)
    assert all(p.dtype == torch.float32 for p in loaded.model.parameters())
    torch.testing.assert_close(loaded.model(BATCH), checkpoint.model(BATCH), atol=0.1, rtol=0.1)


MIXTURES = [
    Parts(position="rotary"),
    Parts(norm="pre", feed_forward="gated", bias=False),
    Parts(shared_layers=True),
    Parts(position="sinusoidal", activation="relu"),
    Parts(window=4),
]


@pytest.mark.parametrize("parts", MIXTURES, ids=lambda parts: f"{parts.position}-{parts.norm}-{parts.window}")
def test_mixtures_that_nobody_else_knows_keep_every_bit(parts, tmp_path):
    config = replace(family_config("bert", "tiny", vocab_size=60), parts=parts)
    model = new_model(config, {"masked_word": None, "classify": 3, "tag": 4})
    save_checkpoint(Checkpoint(model=model.eval(), labels=("x", "y", "z")), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bertkit"
    loaded = load_checkpoint(tmp_path / "out")
    assert loaded.model.config == config
    assert loaded.labels == ("x", "y", "z")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.model.state_dict()[name])


@pytest.mark.parametrize("pooling", ["max", "weighted-mean"])
def test_sentence_settings_travel(pooling, checkpoint, tmp_path):
    import sentence_transformers

    settings = EmbedSettings(pooling=pooling, normalize=True)
    save_checkpoint(replace(checkpoint, model=base(checkpoint), embed=settings, max_length=20), tmp_path / "out")
    loaded = load_checkpoint(tmp_path / "out")
    assert loaded.embed == settings
    assert loaded.max_length == 20
    (tmp_path / "out" / "bertkit.json").unlink()  # as another tool would have written it
    assert load_checkpoint(tmp_path / "out").embed == settings
    assert load_checkpoint(tmp_path / "out").max_length == 20
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert theirs.max_seq_length == 20
    import bertkit

    expected = theirs.encode(["abc def", "x"], convert_to_tensor=True)
    got = torch.from_numpy(bertkit.load(tmp_path / "out").embed(["abc def", "x"]))
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def base(checkpoint):
    model = new_model(checkpoint.model.config, pooler=True)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("modules.json", "{}", "must hold a list of modules"),
        ("modules.json", "[]", "names no Transformer module"),
        ("modules.json", '[{"type": "a.Transformer", "path": "../.."}]', "points outside its folder"),
        ("modules.json", '[{"type": "a.Transformer"}, {"type": "a.CNN"}]', "the module 'CNN' is not supported"),
        ("modules.json", '[{"type": "a.Normalize"}, {"type": "a.Transformer"}]', "modules must be in this order"),
        ("1_Pooling/config.json", '{"pooling_mode_mean_sqrt_len_tokens": true}', "pooling .* is not supported"),
        ("1_Pooling/config.json", '{"pooling_mode": "attention"}', "pooling attention is not supported"),
    ],
)
def test_strange_sentence_folders(checkpoint, tmp_path, name, text, sentence):
    save_checkpoint(replace(checkpoint, embed=EmbedSettings()), tmp_path / "out")
    (tmp_path / "out" / "bertkit.json").unlink()
    (tmp_path / "out" / name).write_text(text)
    with pytest.raises(RequestError, match=sentence):
        load_checkpoint(tmp_path / "out")


def test_nothing_half_written_when_saving_fails(checkpoint, tmp_path, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device")  # as the library says it

    monkeypatch.setattr("bertkit.checkpoint.tensors.save_file", full)
    with pytest.raises(Exception, match="No space left on device; nothing is left of it"):
        save_checkpoint(checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_loading_a_large_model_does_not_draw_weights_first(folder, monkeypatch):
    """Weights from the file are put in place as they are: nothing is initialized and then overwritten."""

    def never(*_, **__):
        raise AssertionError("drew weights that the file holds")

    monkeypatch.setattr("bertkit.model.model._truncated_normal", never)
    load_checkpoint(folder)
    assert sys.modules["bertkit.model.model"]._truncated_normal is never


def test_the_folder_is_portable(folder, tmp_path, checkpoint):
    shutil.copytree(folder, tmp_path / "elsewhere")
    shutil.rmtree(folder)
    same_answers(load_checkpoint(tmp_path / "elsewhere"), checkpoint)
    text = "".join(path.read_text() for path in (tmp_path / "elsewhere").glob("*.json"))
    assert str(tmp_path) not in text
