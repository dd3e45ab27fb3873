"""The module that is trained: one forward pass through the model, and the losses of all objectives."""

from collections.abc import Sequence

from torch import nn

from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.pretraining.objectives.objective import Objective
from bertkit.pretraining.objectives.targets import LossInputs, PretrainingModule, Sums, Targets


class ForPretraining(PretrainingModule):
    """A model and the losses of `rows`; parameters that only a loss has are in `own`."""

    def __init__(self, model: BertModel, rows: Sequence[Objective], seed: int = 0) -> None:
        super().__init__()
        self.model = model
        self.rows = tuple(rows)
        for row in rows:
            row.check_model(model.config)
        parameters = {row.name: row.own_parameters(model, seed) for row in rows}
        self.own = nn.ModuleDict({name: module for name, module in parameters.items() if module is not None})
        self.models = {"model": model}
        self.weights = {loss.name: loss.weight for row in rows for loss in row.losses}

    def forward(self, batch: Batch, targets: Targets) -> Sums:
        """The sums of each loss, by its name."""
        hidden_TD = self.model(batch)
        parameters = dict(self.own.items())
        sums = {}
        for row in self.rows:
            inputs = LossInputs(self.model, parameters.get(row.name), hidden_TD, batch, targets)
            sums[row.losses[0].name] = row.loss(inputs)
        return sums
