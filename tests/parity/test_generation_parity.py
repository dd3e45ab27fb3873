"""Greedy and beam search find transformers' tokens exactly, where no two scores are nearly equal."""

import pytest
import torch
import transformers

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.engine.batches import Passage
from bertkit.engine.writing.decoder import CachedDecoder
from bertkit.engine.writing.search import WriteSettings, beam_search, next_tokens

PAD, END, VOCAB, TOKENS = 0, 2, 31, 12
IDS = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": 1}
GPT = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.5}
BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.5,
}


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT, **IDS))


def gpt():
    return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**GPT, **IDS))


def marian():
    sizes = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in SIZES.items()}
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=16, **sizes, init_std=0.5, activation_function="swish", scale_embedding=True,
        decoder_start_token_id=PAD, forced_eos_token_id=None, **IDS,
    )  # fmt: skip
    return transformers.MarianMTModel(config)


SIZES = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}


def two_berts():
    one, other = transformers.BertConfig(**BERT), transformers.BertConfig(**BERT)
    model = transformers.EncoderDecoderModel(transformers.EncoderDecoderConfig.from_encoder_decoder_configs(one, other))
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = PAD, PAD, END
    return model


MODELS = {"gpt2": gpt2, "gpt": gpt, "marian": marian, "encoder-decoder": two_berts}


def gaps(theirs, prompt, mask):
    """The smallest difference between the two best scores of all steps of greedy search."""
    options = {"max_new_tokens": TOKENS, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    out = theirs.generate(prompt, attention_mask=mask, **options)
    best = [scores.topk(2).values for scores in out.scores]
    return min((two[:, 0] - two[:, 1]).min().item() for two in best)


def until_end(ids):
    return ids[: ids.index(END) + 1] if END in ids else ids


@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (3, 1.0), (4, 0.6), (2, 2.0)])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_transformers(name, beams, penalty, tmp_path):
    compared = 0
    for seed in range(6):
        torch.manual_seed(seed)
        theirs = MODELS[name]().eval()
        theirs.save_pretrained(tmp_path / str(seed))
        model = load_checkpoint(tmp_path / str(seed)).model
        prompt = torch.randint(3, VOCAB, (3, 5))
        lengths = [5, 5, 5] if model.decoder is None else [5, 3, 2]  # transformers pads prompts on the left
        mask = (torch.arange(5) < torch.tensor(lengths)[:, None]).long()
        prompt = prompt * mask
        if gaps(theirs, prompt, mask) < 1e-4:
            continue
        expected = theirs.generate(
            prompt, attention_mask=mask, num_beams=beams, do_sample=False, max_new_tokens=TOKENS,
            length_penalty=penalty, early_stopping=False,
        )  # fmt: skip
        rows = [row[:length] for row, length in zip(prompt.tolist(), lengths, strict=True)]
        with torch.inference_mode():
            if model.decoder is None:
                decoder, start = CachedDecoder(model, rows, TOKENS), 5
            else:
                sources = [Passage(row, [0] * len(row)) for row in rows]
                decoder, start = CachedDecoder(model, [[PAD]] * 3, TOKENS, sources), 1
            found = written(decoder, WriteSettings(tokens=TOKENS, beams=beams, length_penalty=penalty))
        for ours, row in zip(found, expected[:, start:].tolist(), strict=True):
            wanted = until_end(row)
            assert ours == (wanted[: len(ours)] if set(wanted[len(ours) :]) <= {PAD} else wanted)
            compared += 1
    assert compared >= 9


def written(decoder, settings):
    if settings.beams > 1:
        return beam_search(decoder, 3, settings, [END])
    sequences = [[], [], []]
    for step in next_tokens(decoder, 3, settings, {END}):
        for sequence, token in zip(step.sequences, step.ids, strict=True):
            sequences[sequence].append(token)
    return sequences
