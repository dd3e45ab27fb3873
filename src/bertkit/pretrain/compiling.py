"""torch.compile layer by layer: what `Module.compile` does for a whole step takes most of a minute for each form."""

import torch
from torch import nn

from bertkit.model.embeddings import Embeddings
from bertkit.model.layer import PostNormLayer, PreNormLayer


def compile_layers(module: nn.Module) -> None:
    """Layers of one shape share what is compiled, so that depth costs no time; between them nothing is fused."""
    for part in module.modules():
        if isinstance(part, PostNormLayer | PreNormLayer | Embeddings):
            part.forward = torch.compile(part.forward)  # type: ignore[method-assign]
