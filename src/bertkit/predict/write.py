"""Text in, text out: prompts continued by a decoder, sources rewritten by an encoder-decoder, token by token."""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.engine.batches import Passage, fastest, token_batches
from bertkit.engine.writing.decoder import CachedDecoder, generator_parts
from bertkit.engine.writing.search import NextTokens, WriteSettings, beam_search, next_tokens
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.write import Written
from bertkit.text.length import name_text
from bertkit.text.tokenizer import Tokenizer

TOKENS_PER_BATCH = 2048  # of prompts or sources that are generated from together
INCOMPLETE = "\ufffd"  # what a decoded text ends with while bytes of its last character are missing


class Writer:
    """Generates text with a model folder's model and tokenizer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        generator_parts(checkpoint.model)  # refuses an encoder
        if checkpoint.tokenizer is None:
            raise RequestError("this model's folder has no tokenizer, so it cannot write; put a tokenizer.json there")
        self.model, self.tokenizer, self.limit = checkpoint.model, checkpoint.tokenizer, checkpoint.max_length
        self.end_id = self._id(checkpoint, "eos_token_id", self.tokenizer.sep_id)
        self.start_id = self._id(checkpoint, "decoder_start_token_id", self.tokenizer.cls_id)
        self.defaults = _saved_options(checkpoint.task)

    def settings(self, options: Mapping[str, Any]) -> WriteSettings:
        """Options of `Bert.write` as settings, checked; those left out are the ones the model was fine-tuned for."""
        samples = any(name in options for name in ("temperature", "top_k", "top_p"))
        values = {**self.defaults, **({"beams": 1} if samples else {}), **options}
        stop = values.pop("stop", ())
        try:
            return WriteSettings(**values, stop=(stop,) if isinstance(stop, str) else tuple(stop))
        except TypeError as error:
            names = ", ".join(field.name for field in fields(WriteSettings))
            raise RequestError(f"unknown option for generation ({error}); choose from: {names}") from None

    def write(self, texts: Sequence[str], settings: WriteSettings) -> list[Written]:
        """A text for each prompt or source, in order."""
        sequences = self._encoded(texts)
        written: dict[int, Written] = {}
        for chosen in token_batches([len(ids) for ids in sequences], TOKENS_PER_BATCH):
            batch = [sequences[index] for index in chosen]
            results = self._beams(batch, settings) if settings.beams > 1 else self._sampled(batch, settings)
            texts_of_batch = map(self._with_seen, results, batch)
            written |= dict(zip(chosen, texts_of_batch, strict=True))
        return [written[index] for index in range(len(texts))]

    def stream(self, text: str, settings: WriteSettings) -> Generator[str, None, Written]:
        """The same for one text, in pieces as they are generated, then returned; with beams in one piece at the end."""
        sequences = self._encoded([text])
        if settings.beams > 1:
            [written] = self._beams(sequences, settings)
            yield written.text
            return self._with_seen(written, sequences[0])
        reader = self._reader(settings)
        for step in self._steps(sequences, settings):
            if new := reader.add(step.ids[0]):
                yield new
            if reader.ended:
                break
        if rest := reader.finish():
            yield rest
        return self._with_seen(reader.written(), sequences[0])

    def perplexity(self, texts: Sequence[str]) -> list[float]:
        """The exponential of the mean negative log probability of a text's tokens, each given those before it."""
        if self.model.decoder is not None:
            raise RequestError("perplexity is for models that read one text; an encoder-decoder scores a target")
        stack, words = generator_parts(self.model)
        sequences = self._encoded(texts, ended=True)
        values: dict[int, float] = {}
        for chosen in token_batches([len(ids) for ids in sequences], TOKENS_PER_BATCH):
            batch = Batch.pack([sequences[index] for index in chosen]).to(self.model.device)
            with torch.inference_mode():
                for index, vectors in zip(chosen, batch.split(fastest(stack)(batch)), strict=True):
                    targets = torch.tensor(sequences[index][1:], device=vectors.device)
                    loss = F.cross_entropy(words(vectors[:-1]).float(), targets).item() if len(targets) else math.nan
                    values[index] = math.exp(loss)
        return [values[index] for index in range(len(texts))]

    def _sampled(self, sequences: Sequence[Sequence[int]], settings: WriteSettings) -> list[Written]:
        readers = [self._reader(settings) for _ in sequences]
        for step in self._steps(sequences, settings):
            for sequence, token in zip(step.sequences, step.ids, strict=True):
                readers[sequence].add(token)
            if all(reader.ended for reader in readers):
                break
        return [reader.written() for reader in readers]

    def _steps(self, sequences: Sequence[Sequence[int]], settings: WriteSettings) -> Iterator[NextTokens]:
        settings = self._within_limit(sequences, settings)
        with torch.inference_mode():
            decoder = self._decoder(sequences, settings.tokens)
        steps = next_tokens(decoder, len(sequences), settings, {self.end_id})
        while True:
            with torch.inference_mode():  # not while the caller has the step: streams may take turns
                step = next(steps, None)
            if step is None:
                return
            yield step

    def _beams(self, sequences: Sequence[Sequence[int]], settings: WriteSettings) -> list[Written]:
        settings = self._within_limit(sequences, settings)
        with torch.inference_mode():
            decoder = self._decoder(sequences, settings.tokens)
            found = beam_search(decoder, len(sequences), settings, [self.end_id])
        readers = [self._reader(settings) for _ in sequences]
        for reader, ids in zip(readers, found, strict=True):
            for token in ids:
                reader.add(token)
        return [reader.written() for reader in readers]

    def _reader(self, settings: WriteSettings) -> "_Reader":
        return _Reader(self.tokenizer, settings, self.end_id, new=self.model.decoder is not None)

    def _with_seen(self, written: Written, ids: Sequence[int]) -> Written:
        special = {self.tokenizer.cls_id, self.tokenizer.sep_id}
        ends = (ids[0] in special) + (len(ids) > 1 and ids[-1] in special)
        return replace(written, seen=Seen(len(ids) - ends))

    def _decoder(self, sequences: Sequence[Sequence[int]], new_tokens: int) -> CachedDecoder:
        size = self.tokenizer.size
        if self.model.decoder is None:
            return CachedDecoder(self.model, sequences, new_tokens, vocabulary=size)
        sources = [Passage(ids, [0] * len(ids)) for ids in sequences]
        return CachedDecoder(self.model, [[self.start_id]] * len(sequences), new_tokens, sources, size)

    def _within_limit(self, sequences: Sequence[Sequence[int]], settings: WriteSettings) -> WriteSettings:
        """As many new tokens as the model's positions allow."""
        used = 1 if self.model.decoder is not None else max(map(len, sequences))
        return replace(settings, tokens=min(settings.tokens, self.limit - used))

    def _encoded(self, texts: Sequence[str], *, ended: bool = False) -> list[list[int]]:
        """Ids of prompts, or of sources with their special tokens; a text that leaves no room is refused."""
        if self.model.decoder is not None:
            sequences = [list(ids) for ids, _ in self.tokenizer.encode_plain(list(texts))]
            room = self.limit
        else:
            start = [] if self.tokenizer.cls_id == self.tokenizer.sep_id else [self.tokenizer.cls_id]
            sequences = [[*start, *ids] for ids in self.tokenizer.encode_ids(list(texts))]
            sequences = [ids or [self.end_id] for ids in sequences]
            sequences = [[*ids, self.end_id] if ended else ids for ids in sequences]
            room = self.limit if ended else self.limit - 1
        for number, ids in enumerate(sequences):
            if len(ids) > room:
                name = name_text(number)
                raise RequestError(f"{name} has {len(ids)} tokens, over the {room} that this model takes; shorten it")
        return sequences

    def _id(self, checkpoint: Checkpoint, name: str, default: int) -> int:
        value = checkpoint.settings.get(name)
        return value if isinstance(value, int) and 0 <= value < self.model.config.vocab_size else default


def _saved_options(task: Mapping[str, Any]) -> dict[str, Any]:
    """How texts are generated, as bertkit.json has it; empty for a model that was not fine-tuned to write."""
    if "beams" not in task:
        return {}
    tokens = task.get("new_tokens") or task["limit"]
    return {"beams": task["beams"], "length_penalty": task.get("length_penalty", 1.0), "tokens": tokens}


class _Reader:
    """One generated sequence as text that grows."""

    def __init__(self, tokenizer: Tokenizer, settings: WriteSettings, end_id: int, *, new: bool) -> None:
        """`new`: a text that does not continue another one, so that a space before it is dropped."""
        self.tokenizer, self.stop, self.end_id, self.new = tokenizer, settings.stop, end_id, new
        self.ids: list[int] = []
        self.text, self.sent = "", 0
        self.ended = False

    def add(self, token: int) -> str:
        """Add a token; returns what is certain of the text and was not returned before."""
        if self.ended:
            return ""
        self.ids.append(token)
        if token == self.end_id:
            self.ended = True
            return ""
        before, self.text = self.text, self.tokenizer.decode(self.ids)
        self.text = self.text.lstrip() if self.new else self.text
        self._cut_at_stop()
        # The next token may change the end: "word ," becomes "word,", bytes become a character.
        certain = len(_common_start(before, self.text.removesuffix(INCOMPLETE)))
        held = max((len(stop) - 1 for stop in self.stop), default=0)
        return self._send(len(self.text) if self.ended else certain - held)

    def finish(self) -> str:
        """What was not returned yet."""
        return self._send(len(self.text))

    def written(self) -> Written:
        """The whole text."""
        return Written(self.text, len(self.ids), self.ended)

    def _cut_at_stop(self) -> None:
        places = [at for at in (self.text.find(stop) for stop in self.stop) if at >= 0]
        if places:
            self.text, self.ended = self.text[: min(places)], True

    def _send(self, until: int) -> str:
        new = self.text[self.sent : max(until, self.sent)]
        self.sent += len(new)
        return new


def _common_start(one: str, other: str) -> str:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return one[:at]
    return one[: len(other)]
