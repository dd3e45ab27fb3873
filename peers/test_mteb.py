"""`mteb.evaluate` takes a bertkit model; the task is local, so that nothing is downloaded."""

import datasets
import mteb
import numpy as np
import pytest
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import EncoderProtocol
from scipy.stats import spearmanr

import bertkit

PAIRS = [
    ("A man is playing a guitar.", "A man plays the guitar.", 5.0),
    ("A woman is cooking pasta.", "A woman cooks noodles.", 4.0),
    ("The stock market fell.", "Share prices rose on Monday.", 2.5),
    ("A dog runs over the field.", "The bank raised its rates.", 0.0),
    ("Two children are swimming.", "The report is three pages long.", 0.5),
]


class LocalPairs(AbsTaskSTS):
    """Five pairs of sentences with scores from 0 to 5."""

    metadata = TaskMetadata(
        name="LocalPairs",
        description="five pairs",
        reference=None,
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
        dataset={"path": "local/pairs", "revision": "1"},
        date=("2026-01-01", "2026-01-02"),
        domains=["Written"],
        task_subtypes=[],
        license="cc0-1.0",
        annotations_creators="human-annotated",
        dialect=[],
        sample_creation="created",
        bibtex_citation="",
    )

    def load_data(self, *args, **kwargs):
        columns = dict(zip(("sentence1", "sentence2", "score"), map(list, zip(*PAIRS, strict=True)), strict=True))
        self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(columns)})
        self.data_loaded = True


@pytest.fixture(scope="module")
def encoder():
    return bertkit.MtebEncoder("sentences")


def test_it_has_the_protocol_of_mteb(encoder):
    assert isinstance(encoder, EncoderProtocol)
    assert encoder.mteb_model_meta.name == "bertkit/sentences"


def test_similarities_are_cosines(encoder):
    vectors = encoder.encode([{"text": ["one", "two"]}, {"text": ["three"]}])
    assert vectors.shape == (3, encoder.bert.embed("one").shape[0])
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.similarity(vectors, vectors), units @ units.T, atol=1e-5)
    np.testing.assert_allclose(encoder.similarity_pairwise(vectors, vectors), np.ones(3), atol=1e-5)


def test_mteb_evaluates_it_as_bertkit_s_own_vectors_are(encoder, tmp_path):
    result = mteb.evaluate(encoder, LocalPairs(), cache=None, show_progress_bar=False, co2_tracker=False)
    [scores] = result.task_results[0].scores["test"]
    first, second, gold = zip(*PAIRS, strict=True)
    vectors = [encoder.bert.embed(list(texts), normalize=True) for texts in (first, second)]
    expected = spearmanr((vectors[0] * vectors[1]).sum(axis=1), gold).statistic
    assert scores["cosine_spearman"] == pytest.approx(expected, abs=1e-6)
    assert scores["main_score"] > 0.8
