#!/usr/bin/env python3
"""Tests padding of exported models, for tests/exchange.

    padding.py FOLDER...   checks that each row of a padded batch has the results of the row alone

Each folder has an exported model of the zoo. The batches go through transformers as a user's would: through `forward`
and `generate`.
"""

import sys
from pathlib import Path

import torch
import transformers

NEW = 4
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def check(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder.resolve(), trust_remote_code=True).eval()
    # In f64, Gemma 2 of transformers 5.23 gives NaN for a row with padding.
    if type(model).__name__ != "Gemma2ForCausalLM":
        model = model.double()
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = model.config.bos_token_id = None
    context = model.config.max_position_embeddings
    generator = torch.Generator().manual_seed(1)
    draw = lambda length: torch.randint(1, model.config.vocab_size, (length,), generator=generator)
    # These lengths are around the ends of blocks and of the context.
    lengths = {1, 4, 8, 9, 10, 16, 17, context - NEW, context}
    rows = [draw(length) for length in sorted(lengths) if length <= context]
    alone = [model(row[None]).logits[0] for row in rows]
    is_own = type(model).__name__ == "ResidualZooForCausalLM"
    for side in ("left", "right", "both", "holes"):
        if is_own:
            forward(model, rows, alone, side)
        elif type(model).__name__ != "GPT2LMHeadModel" and side in ("left", "right"):
            # transformers computes rotary positions in f32, so the tolerance is larger.
            ids, mask = padded(rows, side, 0)
            found = model(ids, attention_mask=mask).logits
            for i, expected in enumerate(alone):
                same(found[i, mask[i].bool()], expected, f"{type(model).__name__} {side} row {i}", 1e-5)
    short = rows[1:-1:2]
    decode(model, short, "left", num_beams=1)
    decode(model, short, "left", num_beams=3)
    decode(model, short, "left", num_beams=1, use_cache=True)
    if is_own:
        decode(model, short, "right", num_beams=1)
        # With its padding, the prompt exceeds the context. So does the generated text.
        decode(model, [rows[2], rows[-1]], "left", num_beams=1)
        decode(model, [rows[2], rows[-1]], "right", num_beams=1)
        refusals(model, rows)


def padded(rows, side, pad):
    """Returns the rows, padded with the id `pad`, and their mask."""
    width = max(map(len, rows)) + (3 if side in ("both", "holes") else 0)
    ids, mask = torch.full((len(rows), width), pad), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        free = width - len(row)
        at = torch.arange(len(row)) + {"left": free, "right": 0, "both": free // 2, "holes": 0}[side]
        if side == "holes":
            at[len(row) // 2 :] += free
        ids[i, at], mask[i, at] = row, 1
    return ids, mask


def forward(model, rows, alone, side):
    # Any id can be padding, even an id that the model does not have.
    for pad in (0, 1, model.config.vocab_size):
        ids, mask = padded(rows, side, pad)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        for arguments in ({}, {"position_ids": positions}, {"use_cache": True, "token_type_ids": torch.zeros_like(ids)}):
            for kind in (mask, mask.bool(), mask.double()):
                found = model(ids, attention_mask=kind, **arguments).logits
                for i, expected in enumerate(alone):
                    same(found[i, mask[i].bool()], expected, f"{side} {pad} row {i}")
        labels = ids.masked_fill(mask == 0, -100)
        loss = model(ids, attention_mask=mask, labels=labels).loss
        losses = [model(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows if len(row) > 1]
        same(loss, sum(losses) / sum(len(row) - 1 for row in rows), f"{side} loss")


def same(found, expected, what, tolerance=1e-9):
    difference = (found - expected).abs().max().item()
    assert difference <= tolerance, f"{what}: {difference}"


def decode(model, rows, side, **arguments):
    ids, mask = padded(rows, side, 0)
    arguments |= dict(max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    alone = [model.generate(row[None], **arguments)[0, len(row) :].tolist() for row in rows]
    for mask in (mask, None):
        # Without a mask, transformers treats `pad_token_id` as padding.
        found = model.generate(ids, attention_mask=mask, **arguments)[:, ids.shape[1] :].tolist()
        name = type(model).__name__
        assert found == alone, f"{name} {side} {arguments}: {found} instead of {alone}"


def refusals(model, rows):
    ids, mask = padded(rows[:4], "left", 0)
    refused("", lambda: model(inputs_embeds=torch.zeros(1, 2, 3)), "inputs_embeds")
    refused("", lambda: model(ids, past_key_values=transformers.DynamicCache()), "past_key_values")
    refused("", lambda: model(ids, attention_mask=mask[:, 1:]), "attention_mask is [4, 8]")
    refused("", lambda: model(ids, attention_mask=mask[:, None, None] * -1e9), "attention_mask is [4, 1, 1, 9]")
    refused("", lambda: model(ids, attention_mask=(1 - mask) * -1e9), "0 for padding and 1 for tokens")
    refused("", lambda: model(ids, attention_mask=mask, position_ids=torch.arange(9)[None]), "position_ids")
    refused("", lambda: model(rows[-1].repeat(2)[None]), "more than the context")
    refused("", lambda: model.generate(ids, attention_mask=mask, assistant_model=model, use_cache=True), "assisted")
    refused("", lambda: model.generate(inputs_embeds=torch.zeros(1, 2, 3)), "inputs_embeds")
    size = model.block.size
    twice = torch.stack([torch.cat([rows[1], torch.zeros(60, dtype=torch.long)]), torch.cat([rows[1]] * 16)])
    twice = twice[:, : model.context]
    if size:
        # lm_eval pads on the right, with zeros and without a mask.
        refused("lm_eval", lambda: model(twice), "may be padding")
        model(twice[:1])
    else:
        same(model(twice).logits[0, :4], model(rows[1][None]).logits[0], "as lm_eval pads")
    model.config.pad_token_id = 0
    refused("a padding token", lambda: model(ids), "give an attention_mask")
    if size:
        refused("a padding token", lambda: model(twice[:1]), "may be padding")
    # The token between texts may begin a text, but may not occur twice at its start.
    model.config.eos_token_id = 0
    model(torch.cat([ids[3:, :1] * 0, ids[3:]], 1))
    model(ids[:1, :1])
    refused("two ends of a text", lambda: model(ids[:1]), "give an attention_mask")
    model.config.eos_token_id = model.config.pad_token_id = None


def refused(what, call, problem):
    try:
        call()
    except ValueError as error:
        assert problem in str(error), f"{what}: {error}"
    else:
        raise AssertionError(f"{what}: {problem} is not refused")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        for folder in map(Path, sys.argv[1:]):
            check(folder)
            print(folder.name, flush=True)
