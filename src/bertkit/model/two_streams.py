"""Two streams (XLNet): vectors that predict a token from its position and the tokens before it in some order.

The first stream, the content, has a vector for each token, which knows the token. The second, the queries, has one for
each token to predict (a target), which knows where it is but not what it is. All tokens that are not targets come
before the targets in the order. Both streams go through the same layers: rows of the second follow those of the first.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.model.attention import AttentionPattern, Places
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.operations import Operations


def query_vectors(encoder: Encoder, batch: Batch, chosen_M: Tensor, order_M: Tensor) -> Tensor:
    """M D: the last layer's queries of the targets at the positions `chosen_M` of a packed batch.

    A target is predicted from the tokens that are no targets, and from the targets of its sequence with a smaller
    order; orders are 1 or more. Entries with order 0 are padding: their vectors mean nothing.
    """
    embeddings = encoder.embeddings
    assert embeddings.query is not None  # the caller has checked the model
    content_TD = embeddings(batch, dtype=encoder.dtype)
    query_MD = embeddings.dropout(embeddings.query.expand(len(chosen_M), -1)).to(encoder.dtype)
    streams = encoder.from_embeddings(torch.cat((content_TD, query_MD)), batch, TwoStreams(batch, chosen_M, order_M))
    return streams[len(content_TD) :]


class TwoStreams(Operations):
    """Torch's operations, with the attention of both streams over the content, in the padded view of a batch."""

    def __init__(self, batch: Batch, chosen_M: Tensor, order_M: Tensor) -> None:
        self.cells_M = batch.cells[chosen_M]
        order_T = torch.zeros_like(batch.ids).index_put((chosen_M,), order_M)
        row, column = (order.unsqueeze(1) for order in _rows_and_columns(batch.pad(order_T)))
        is_first_L = torch.arange(batch.longest, device=batch.ids.device) == 0  # never a target: no row sees nothing
        is_token_N11L = batch.mask[:, None, None, :]
        self.content_N1LL = is_token_N11L & (column <= row) | is_first_L
        self.query_N1LL = is_token_N11L & (column < row) | is_first_L

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T+M 3D -> T+M D."""
        assert pattern.bias is not None  # relative positions: else, queries would not know where they are
        qkv_X3HK, tokens = pattern.split(qkv_TX, batch), len(batch.ids)
        cells_NL3HK = batch.pad(qkv_X3HK[:tokens])
        q_NHLK, k_NHLK, v_NHLK = cells_NL3HK.permute(2, 0, 3, 1, 4).unbind()
        empty_NLHK = torch.zeros_like(cells_NL3HK[:, :, 0])
        g_NLHK = empty_NLHK.flatten(0, 1).index_copy(0, self.cells_M, qkv_X3HK[tokens:, 0]).view_as(empty_NLHK)
        places, mixed = Places(batch.pad(batch.positions), batch.pad(batch.segments)), []
        for rows_NHLK, seen in ((q_NHLK, self.content_N1LL), (g_NLHK.transpose(1, 2), self.query_N1LL)):
            scores = pattern.bias(rows_NHLK, k_NHLK, places).masked_fill(~seen, float("-inf"))
            out_NHLK = F.scaled_dot_product_attention(
                rows_NHLK, k_NHLK, v_NHLK, attn_mask=scores, dropout_p=dropout, scale=pattern.bias.scale
            )
            mixed.append(out_NHLK.transpose(1, 2))
        return torch.cat((batch.unpad(mixed[0]), mixed[1].flatten(0, 1)[self.cells_M])).flatten(1)


def _rows_and_columns(x_NL: Tensor) -> tuple[Tensor, Tensor]:
    """N L 1 and N 1 L."""
    return x_NL[:, :, None], x_NL[:, None, :]
