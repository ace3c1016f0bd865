#!/usr/bin/env python3
"""Writes models of transformers in the form of repositories on the hub, for tests/exchange.

    hub.py FOLDER   writes directories to FOLDER, each with the results of transformers

ids.json has token ids, and logits.json has their logits in float64. text.txt has a text, and encoded.json has its token
ids. ends.json has the ids that begin and end a text, and names.json has the tokens for padding and unknown text.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from reference import TEXT, randomise, train_tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GPT2Config, GPT2LMHeadModel

SPARE = 6
"""Rows of the token table that the tokenizer's own vocabulary does not need."""


def main(out):
    out.mkdir()
    bpe = train_tokenizer()
    size = bpe.get_vocab_size()
    sizes = dict(n_layer=2, n_head=3, n_embd=48, n_positions=64, bos_token_id=0, eos_token_id=0)
    config = GPT2Config(vocab_size=size + SPARE, **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    randomise(model.parameters(), 0.1)

    def folder(name):
        there = out / name
        model.save_pretrained(there)
        bpe.save(str(there / "tokenizer.json"))
        return there

    for name in MODELS:
        there = folder(f"model-{name}")
        globals()[name](there)
        load = GPT2LMHeadModel if name == "class_only" else AutoModelForCausalLM
        record(there, load.from_pretrained(there).eval(), bpe.encode(TEXT).ids[:20])
    for name, files in tokenizers(size).items():
        there = folder(f"tokenizer-{name}")
        if not name.startswith("fast"):
            (there / "tokenizer.json").unlink()
            bpe.model.save(str(there))
        for file, content in files.items():
            (there / file).write_text(json.dumps(content))
        record(there, model, bpe.encode(TEXT).ids[:20])
        text = "It is <|pad|> not<|user|> in  <|end|>  the <|endoftext|>stars<|extra|>.[MASK]x"
        (there / "text.txt").write_text(text)
        tokenizer = AutoTokenizer.from_pretrained(there)
        (there / "names.json").write_text(json.dumps([tokenizer.pad_token, tokenizer.unk_token]))
        ids = tokenizer(text, add_special_tokens=False).input_ids
        beyond = name.endswith("beyond")
        assert beyond or max(ids) < size + SPARE, (name, ids)
        if beyond:
            # Tokens without a row in the table are not tokens of the model, so the text has no such tokens.
            (there / "text.txt").write_text(TEXT)
            ids = tokenizer(TEXT, add_special_tokens=False).input_ids
        (there / "encoded.json").write_text(json.dumps(ids))
        generation = GenerationConfig.from_pretrained(there)
        begin, end = tokenizer.bos_token_id, generation.eos_token_id
        begin = generation.bos_token_id if begin is None else begin
        (there / "ends.json").write_text(json.dumps([begin, end[0] if isinstance(end, list) else end]))


def record(there, model, ids):
    (there / "ids.json").write_text(json.dumps(ids))
    with torch.no_grad():
        logits = model.double()(torch.tensor([ids])).logits[0]
    model.float()
    (there / "logits.json").write_text(json.dumps(logits.tolist()))


def edit(there, **fields):
    path = there / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in config.items() if value != "absent"}))


def weights(there):
    return load_file(there / "model.safetensors")


def save(there, state):
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, there / "model.safetensors", {"format": "pt"})


def nulls(there):
    unset = ["architectures", "n_inner", "bos_token_id", "eos_token_id", "pad_token_id", "task_specific_params"]
    edit(there, **dict.fromkeys(unset), transformers_version=None, torch_dtype=None, dtype=None, id2label=None, unknown=[1])
    (there / "generation_config.json").write_text('{"bos_token_id": null, "eos_token_id": null}')


def type_only(there):
    edit(there, architectures="absent", transformers_version="absent", summary_type="absent", attn_pdrop=0, embd_pdrop=0)


def class_only(there):
    edit(there, model_type="absent")


def second_names(there):
    names = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=64)
    edit(there, n_embd="absent", n_layer="absent", n_head="absent", n_positions="absent", **names)


def both_names(there):
    edit(there, n_head=4, num_attention_heads=3)


def without_prefix(there):
    save(there, {name.removeprefix("transformer."): tensor for name, tensor in weights(there).items()})
    edit(there, architectures=["GPT2Model"])


def head_twice(there):
    state = weights(there)
    save(there, state | {"lm_head.weight": state["transformer.wte.weight"].clone()})


def head_alone(there):
    state = weights(there)
    save(there, state | {"lm_head.weight": state.pop("transformer.wte.weight")})


def buffers(there):
    state = weights(there)
    for layer in range(2):
        state[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()
        state[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save(there, state)


def half(there):
    save(there, {name: tensor.half() for name, tensor in weights(there).items()})
    edit(there, dtype="float16")


def bfloat16_pickle(there):
    state = {name: tensor.bfloat16() for name, tensor in weights(there).items()}
    (there / "model.safetensors").unlink()
    torch.save(state | {"lm_head.weight": state["transformer.wte.weight"]}, there / "pytorch_model.bin")
    edit(there, torch_dtype="bfloat16", dtype="absent")


def shards(there, ending, write):
    state = weights(there)
    (there / "model.safetensors").unlink()
    stem, names = ending[0], sorted(state)
    files = {name: f"{stem}-0000{1 + i % 2}-of-00002.{ending[1]}" for i, name in enumerate(names)}
    for file in set(files.values()):
        write({name: state[name].contiguous() for name in names if files[name] == file}, there / file)
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (there / f"{stem}.{ending[1]}.index.json").write_text(json.dumps(index))


def safe_shards(there):
    shards(there, ("model", "safetensors"), lambda state, path: save_file(state, path, {"format": "pt"}))


def pickle_shards(there):
    shards(there, ("pytorch_model", "bin"), torch.save)


MODELS = [
    "nulls", "type_only", "class_only", "second_names", "both_names", "without_prefix", "head_twice", "head_alone",
    "buffers", "half", "bfloat16_pickle", "safe_shards", "pickle_shards",
]  # fmt: skip


def tokenizers(size):
    """Returns the files beside the tokenizer, by directory name."""
    token = lambda content, **flags: dict(content=content, lstrip=False, rstrip=False, single_word=False) | flags
    plain = dict(normalized=False, special=False)
    decoder = {
        "0": token("<|endoftext|>", normalized=False, special=True),
        str(size): token("<|pad|>", lstrip=True, normalized=False, special=True),
        str(size + 1): token("<|user|>", rstrip=True, **plain),
        str(size + 2): token("<|end|>", single_word=True, **plain),
    }
    unset = dict(pad_token=None, unk_token=None, model_max_length=1000000000000000019884624838656)
    special = {
        "pad_token": token("<|pad|>", lstrip=True, normalized=False),
        "eos_token": "<|endoftext|>",
        "mask_token": token("[MASK]", lstrip=True, normalized=True),
        "additional_special_tokens": ["<|extra|>", "<|user|>"],
    }
    others = {"bos_token": "<|user|>", "eos_token": "<|end|>", "unk_token": "<|pad|>"}
    added = {"<|user|>": size + 1, "<|pad|>": size}
    return {
        "added": {"added_tokens.json": added},
        "added-special": {"added_tokens.json": added, "special_tokens_map.json": special},
        "special": {"special_tokens_map.json": special},
        "prefix-space": {"tokenizer_config.json": {"add_prefix_space": True, "tokenizer_class": "GPT2Tokenizer"}},
        "decoder": {"tokenizer_config.json": {"added_tokens_decoder": decoder, "tokenizer_class": "GPT2Tokenizer"} | unset},
        # With an added_tokens_decoder, transformers does not read the older files.
        "decoder-first": {
            "tokenizer_config.json": {"added_tokens_decoder": decoder, "pad_token": "<|pad|>"},
            "special_tokens_map.json": special,
            "added_tokens.json": added,
        },
        "others": {
            "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"} | others,
            "generation_config.json": {"bos_token_id": size, "eos_token_id": [size + 1, 0]},
        },
        "no-others": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"} | dict.fromkeys(others)},
        "one-other": {
            "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|user|>", "eos_token": None},
        },
        "fast": {},
        "fast-added": {"added_tokens.json": added},
        "fast-special": {
            "special_tokens_map.json": special,
            "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"} | unset,
        },
        "fast-decoder": {
            "tokenizer_config.json": {
                "added_tokens_decoder": decoder,
                "tokenizer_class": "PreTrainedTokenizerFast",
                "pad_token": "<|pad|>",
                "extra_special_tokens": ["<|extra|>"],
            },
        },
        "fast-named": {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "pad_token": token("<|pad|>", lstrip=True, normalized=False) | {"__type": "AddedToken"},
                "mask_token": "[MASK]",
            },
        },
        # If a file has both lists, transformers reads only one.
        "lists": {
            "tokenizer_config.json": {
                "tokenizer_class": "GPT2Tokenizer",
                "additional_special_tokens": ["<|user|>"],
                "extra_special_tokens": ["<|extra|>"],
            },
        },
        "fast-lists": {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "extra_special_tokens": ["<|extra|>"],
                "additional_special_tokens": ["<|user|>"],
            },
            "special_tokens_map.json": {"additional_special_tokens": ["[MASK]"], "pad_token": "<|pad|>"},
        },
        "fast-lists-map": {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "additional_special_tokens": ["<|user|>"],
                "unk_token": "<|end|>",
            },
            "special_tokens_map.json": {"extra_special_tokens": ["<|extra|>"]},
        },
        "beyond": {"added_tokens.json": {f"<{i}>": size + i for i in range(SPARE + 2)}},
    }


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(Path(sys.argv[1]))
