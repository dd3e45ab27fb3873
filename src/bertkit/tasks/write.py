"""Text to text: the encoder reads a source, the decoder writes the target, trained to predict each next token."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.config import BertConfig
from bertkit.data.examples import Example
from bertkit.engine.batches import Passage, token_batches
from bertkit.engine.writing.decoder import CachedDecoder
from bertkit.engine.writing.search import WriteSettings, search
from bertkit.errors import RequestError
from bertkit.model.batch import Batch, Layout
from bertkit.model.model import BertModel
from bertkit.model.operations import Source
from bertkit.tasks.metrics.texts import WITHOUT_SACREBLEU, TextScores, has_sacrebleu, word_f1
from bertkit.tasks.rows.write import SourceExample, WriteRow
from bertkit.tasks.shared.calibration import NO_GAIN_MESSAGE
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.fixed_batch import LENGTH_MULTIPLE, padded_layout, padded_tokens, round_up
from bertkit.tasks.shared.length import Seen, count_seen, select_tokens, sequence_positions
from bertkit.tasks.shared.text_task import pad_to
from bertkit.tasks.task import Dataset, FixedSize, HeadOutputs, LossSettings, Mistake, Task, Window

SOURCE_TOKENS = 16_384  # of sources that are written from together, on a GPU; divided by the beams
SOURCE_TOKENS_CPU = 2048
ALL_READ = Seen(0)  # a prompt or source that was not cut


@dataclass(frozen=True)
class Written:
    """A generated text, without the prompt."""

    text: str
    tokens: int  # generated, the end token included
    ended: bool  # by the model's end token or a stop text; False: at the limit of tokens
    seen: Seen = field(default=ALL_READ, repr=False)


@dataclass(frozen=True)
class PairBatch(Batch):
    """Sources, with the targets on the same device."""

    target: Batch | None = None

    def to(self, device: torch.device | str) -> "PairBatch":
        """Sources and targets on another device."""
        target = None if self.target is None else self.target.to(device).laid_out()
        return replace(super().to(device), target=target)  # type: ignore[return-value, call-arg]

    def with_target(self, ids: Tensor, layout: Layout) -> "PairBatch":
        """The same with a target of fixed size."""
        return replace(self, target=Batch(ids, torch.zeros_like(ids), (len(ids),), layout))


@dataclass(frozen=True, kw_only=True)
class Write(Task):
    """A text for each text; a window's target are the ids to predict, the end token included."""

    row = WriteRow()
    start_id: int = 0  # the decoder's first input
    end_id: int = 0
    beams: int = 1
    length_penalty: float = 1.0
    new_tokens: int | None = None  # None: as many as there are positions

    @property
    def main_metric(self) -> str:
        """chrF, or the F1 of words without sacrebleu."""
        return super().main_metric if has_sacrebleu() else "token_f1"

    @property
    def score_notes(self) -> tuple[str, ...]:
        """That sacrebleu is missing, if it is."""
        return () if has_sacrebleu() else (WITHOUT_SACREBLEU,)

    def windows(self, example: Example, number: int) -> list[Window]:
        """The source, cut to the limit; the target must fit."""
        assert isinstance(example, SourceExample)
        encoding = self.tokenizer.encode(example.source)
        sequences = sequence_positions(encoding, self.limit, self.length)
        target = None if example.target is None else self._target_ids(example)
        return [Window(*select_tokens(encoding, sequences[0]), number, target, count_seen(encoding, sequences))]

    def _target_ids(self, example: SourceExample) -> tuple[int, ...]:
        [ids] = self.tokenizer.encode_ids([example.target or ""])
        if len(ids) >= self.limit:
            raise RequestError(
                f"{example.location}: the target has {len(ids) + 1} tokens with its end, over the {self.limit} that "
                "the model can write; shorten it, or set a larger max_length if the model has more positions"
            )
        return (*ids, self.end_id)

    # Training

    def model_config(self, config: BertConfig) -> BertConfig:
        """A model without a decoder gets one as deep as itself, with embeddings of its own."""
        if config.parts.causal:
            raise RequestError(
                "this model reads from left to right and continues a text; pairs of texts are learned by an encoder "
                "with a decoder: leave out --from, or start from an encoder such as 'bundled'"
            )
        if config.decoder_depth:
            return config
        if config.parts.relative != "none":
            raise RequestError(
                "a decoder cannot be made of this model, whose positions are relative; start from another encoder, "
                "such as 'bundled', or leave out --from"
            )
        family = "encoder-decoder" if config.family == "bert" else config.family
        parts = replace(config.parts, shared_vocabulary=False)
        return replace(config, family=family, decoder_depth=config.depth, parts=parts)

    def start_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The decoder's layers start as the encoder's (Rothe 2020), its words as the masked words."""
        copies = {"encoder.": "heads.decoder.stack.", "heads.masked_word.": "heads.decoder.words."}
        return {
            name.replace(old, new, 1): tensor
            for name, tensor in weights.items()
            for old, new in copies.items()
            if name.startswith(old)
        }

    def pack(self, batch: Batch, windows: Sequence[Window]) -> Batch:
        """The sources with their targets."""
        return PairBatch(batch.ids, batch.segments, batch.lengths, target=self._inputs(windows))

    def _inputs(self, windows: Sequence[Window]) -> Batch:
        """What the decoder reads: the start token and the target without its end."""
        return Batch.pack([(self.start_id, *window.target[:-1]) for window in windows])

    def count_targets(self, windows: Sequence[Window]) -> int:
        """The number of target tokens."""
        return sum(len(window.target) for window in windows)

    def read_head(self, model: BertModel, hidden_TD: Tensor, batch: Batch, windows: Sequence[Window]) -> Tensor:
        """T V: the logits of the target's tokens; nothing without a target."""
        if any(window.target is None for window in windows):
            return hidden_TD.new_zeros(0, model.config.vocab_size)
        assert model.decoder is not None
        target = batch.target if isinstance(batch, PairBatch) else None
        target = self._inputs(windows).to(hidden_TD.device) if target is None else target
        logits: Tensor = model.decoder.words(model.decoder(target, Source(hidden_TD, batch)))
        return logits

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """The sum of the cross-entropies, in nats, with label smoothing."""
        target = batch.target if isinstance(batch, PairBatch) else None
        gold = self._gold(self._inputs(windows).to(logits.device) if target is None else target)
        return F.cross_entropy(logits, gold, reduction="sum", label_smoothing=weights.label_smoothing)

    def _gold(self, target: Batch) -> Tensor:
        """T: the token after each of the decoder's inputs; after the last one, the end."""
        gold = target.ids.roll(-1)
        gold[target.offsets[1:].long() - 1] = self.end_id
        return gold

    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """The decoder's inputs with their layout, the token after each, and its weight.

        Of the first tensor only the length is read, that of the longest target: it is a part of the form.
        """
        lengths = [len(window.target) for window in windows]
        longest = max(size.longest, min(round_up(max(lengths), LENGTH_MULTIPLE), self.limit))
        padding = padded_tokens(sum(lengths), size.examples) - sum(lengths)
        positions, offsets = padded_layout(lengths, padding, longest, size.sequences)
        gold = [*chain.from_iterable(window.target for window in windows)]
        ids = [*chain.from_iterable((self.start_id, *window.target[:-1]) for window in windows), *[0] * padding]
        known = torch.tensor([1.0] * len(gold) + [0.0] * padding)
        return torch.zeros(longest), torch.tensor(ids), positions, offsets, pad_to(len(ids), gold), known

    def fixed_logits(self, model: BertModel, batch: Batch, targets: Sequence[Tensor]) -> Tensor:
        """T V: as `read_head`."""
        longest, ids, positions, offsets, *_ = targets
        layout = Layout(offsets, positions, len(longest), fixed=True)
        target = PairBatch(batch.ids, batch.segments, batch.lengths, batch.layout).with_target(ids, layout)
        return self.read_head(model, model(batch), target, ())

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """As `loss_sum`; the weight of padding is 0."""
        *_, gold, known = targets
        return (F.cross_entropy(logits, gold, reduction="none", label_smoothing=smoothing) * known).sum()

    def distillation_loss(
        self, teacher: Task, logits: Tensor, target: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """The Kullback-Leibler divergence from the teacher's distributions of the next token."""
        scale = temperature**2
        student, wanted = ((values / temperature).log_softmax(dim=-1) for values in (logits, target))
        return scale * F.kl_div(student, wanted, reduction="sum", log_target=True)

    # Predictions

    def window_outputs(
        self, model: BertModel, logits: Tensor, batch: Batch, windows: Sequence[Window]
    ) -> list[np.ndarray]:
        """The ids that are generated for each window."""
        written: dict[int, list[int]] = {}
        budget = (SOURCE_TOKENS if model.device.type == "cuda" else SOURCE_TOKENS_CPU) // self.beams
        # A recorded step must not read weights that autocast keeps for a while only.
        with torch.autocast(model.device.type, enabled=False):
            for chosen in token_batches([len(window.ids) for window in windows], budget):
                ids = self._generate(model, [windows[index] for index in chosen])
                written |= dict(zip(chosen, ids, strict=True))
        return [np.array(written[index], dtype=np.int64) for index in range(len(windows))]

    def _generate(self, model: BertModel, windows: Sequence[Window]) -> list[list[int]]:
        limit = min(self.new_tokens or self.limit, self.limit - 1)
        settings = WriteSettings(tokens=limit, beams=self.beams, length_penalty=self.length_penalty)
        sources = [Passage(window.ids, [0] * len(window.ids)) for window in windows]
        starts = [[self.start_id]] * len(windows)
        decoder = CachedDecoder(model, starts, limit, sources, self.tokenizer.size)
        return search(decoder, len(windows), settings, [self.end_id])

    def decode_one(
        self, example: Example, windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> Written:
        """The ids as text."""
        ids = outputs[0].tolist()
        ended = bool(ids) and ids[-1] == self.end_id
        text = self.tokenizer.decode(ids[:-1] if ended else ids)
        return Written(text.lstrip(), len(ids), ended, windows[0].detail)

    def score(self, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, float]:
        """BLEU, chrF, exact match, F1 of words."""
        return self.scorer(examples, predictions)(range(len(examples)))

    def scorer(self, examples: Sequence[Example], predictions: Sequence[Any]) -> TextScores:
        """The counts of each text are kept: BLEU and chrF of a selection take no time then."""
        gold = [example.target or "" for example in examples if isinstance(example, SourceExample)]
        return TextScores(gold, [prediction.text for prediction in predictions])

    def collapse_message(
        self, dev: Dataset, outputs: HeadOutputs, loss: float | None, predictions: Sequence[Any], min_gain: float
    ) -> str | None:
        """A message if tokens are predicted hardly better than by their frequencies, whatever the source says."""
        counts = np.array([*Counter(token for window in dev.flat for token in window.target).values()], dtype=float)
        shares = counts / counts.sum()
        guessing = float(-(shares * np.log(shares)).sum())
        return NO_GAIN_MESSAGE if loss is not None and loss > (1 - min_gain) * guessing else None

    def mistake(self, example: Example, prediction: Written) -> Mistake | None:
        """A text that differs from the target, weighted by the words that differ."""
        assert isinstance(example, SourceExample)
        gold = (example.target or "").strip()
        if prediction.text == gold:
            return None
        return Mistake(1 - word_f1(gold, prediction.text), example.source, gold, prediction.text)
