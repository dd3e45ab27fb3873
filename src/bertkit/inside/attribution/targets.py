"""Which output of a model is explained: a word for a blank, or what its task explains."""

import torch
from torch import Tensor

from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.predict.bert import Bert
from bertkit.tasks.explain import Request, Target, refuse_word, text_tokens
from bertkit.tasks.table import task_heads


def find_target(bert: Bert, request: Request) -> Target:
    """A blank of a model that fills, else what the model was fine-tuned for."""
    tokenizer = bert.tokenizer
    fills = bert.model.fills
    if fills and tokenizer.mask_id in tokenizer.encode(request.text, request.pair).ids:
        refuse_word(request)
        return _blank(bert, request)
    if fills and not set(task_heads()) & set(bert.model.heads):
        raise RequestError(f"the text has no blank to explain: write {tokenizer.mask_token} where a word is missing")
    return bert.answers.task.explain(bert.model, request, bert.answers.predict)


def _blank(bert: Bert, request: Request) -> Target:
    """The log probability of a word for the first blank."""
    tokenizer = bert.tokenizer
    tokens = text_tokens(bert.model, tokenizer, request)
    _refuse_longer(len(tokens.ids), bert.checkpoint.max_length)
    place, known = list(tokens.ids).index(tokenizer.mask_id), tokenizer.size

    def chances(hidden: Tensor, batch: Batch) -> Tensor:
        rows = hidden[batch.offsets[:-1].long() + place]
        return bert.model.read("masked_word", rows, batch)[:, :known].float().log_softmax(dim=-1)

    if request.target is None:
        batch = Batch.pack([tokens.ids], [tokens.segments]).to(bert.model.device)
        with torch.inference_mode():
            chosen = int(chances(bert.model(batch), batch)[0].argmax())
    else:
        [pieces] = tokenizer.encode_ids([request.target])
        if len(pieces) != 1 or pieces[0] == tokenizer.unknown_id:
            raise RequestError(f"'{request.target}' is not one piece of the vocabulary; name a word that is")
        chosen = pieces[0]
    name = f"the word '{tokenizer.written(chosen)}' for the blank"
    return Target(name, "nats of log probability", tokens, lambda hidden, batch: chances(hidden, batch)[:, chosen])


def _refuse_longer(tokens: int, limit: int) -> None:
    if tokens > limit:
        raise RequestError(f"the text has {tokens} tokens, over the model's {limit}; give a part of it")
