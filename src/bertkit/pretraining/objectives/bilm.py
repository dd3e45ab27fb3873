"""Two language models in one (ELMo): a token's forward half predicts the next token, the other half the previous."""

from typing import TYPE_CHECKING

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.pretraining.examples.arrays import Examples, Ids
from bertkit.pretraining.examples.random import Ints
from bertkit.pretraining.objectives.causal import next_words
from bertkit.pretraining.objectives.objective import Objective
from bertkit.train.loss import PERPLEXITY, Loss

if TYPE_CHECKING:
    from bertkit.pretraining.objectives.targets import LossInputs, Sum


class BidirectionalLanguageModel(Objective):
    """Nothing is masked: neither direction has seen the word that it predicts."""

    name = "bilm"
    kind = "tokens"
    losses = (Loss("bilm", "next and previous words", shown=PERPLEXITY),)
    heads = ("masked_word",)
    family = "elmo"
    no_pair_reason = "reads one text; leave out the pair"
    masks_tokens = False

    def check_model(self, config: BertConfig) -> None:
        """Refuse a model whose vectors have seen both sides of a word."""
        if not config.two_way_words:
            raise RequestError(
                f"objective={self.name} needs a model that reads both ways apart, as family={self.family} does; "
                "others see the word that they predict"
            )

    def targets(self, examples: Examples) -> tuple[Ints, Ids]:
        """The next word, at every position that has one; the loss asks for the previous one of each such pair too."""
        return next_words(examples.ids, examples.lengths)

    def target_share(self, rate: float) -> float:
        """All positions but the last of each text, so about 1."""
        return 1.0

    def counts(self, examples: Examples) -> dict[str, int]:
        """Two targets for each pair of neighbors."""
        return {loss.name: 2 * (len(examples.ids) - len(examples.lengths)) for loss in self.losses}

    def word_share(self, rate: float) -> float:
        """The vocabulary head runs twice at every token."""
        return 2.0

    def loss(self, inputs: "LossInputs") -> "Sum":
        """Forward and backward losses together; each token of a pair of neighbors predicts the other one."""
        import torch

        from bertkit.model.heads import TwoWayWordHead
        from bertkit.model.word_loss import IGNORE
        from bertkit.pretraining.objectives.targets import logit_sums

        model, targets = inputs.model, inputs.targets
        left, words = targets.chosen, targets.words
        right = (left + 1).clamp(max=len(inputs.hidden_TD) - 1)  # where a fixed shape has room left, nothing is asked
        forward_TE, backward_TE = inputs.hidden_TD.chunk(2, dim=-1)
        previous = torch.where(words == IGNORE, IGNORE, inputs.batch.ids[left])
        head: TwoWayWordHead = model.heads["masked_word"]  # type: ignore[assignment]
        sides = ((forward_TE[left], words), (backward_TE[right], previous))
        sums = [logit_sums(head.one_way(half), asked, model.config.vocab_size) for half, asked in sides]
        loss, count, correct = (torch.stack(parts).sum() for parts in zip(*sums, strict=True))
        return loss, count, correct
