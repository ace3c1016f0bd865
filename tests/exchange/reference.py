#!/usr/bin/env python3
"""Computes the results of other projects' models, for tests/exchange.

    reference.py logits FOLDER...   logits and greedy text of exported models, by transformers
    reference.py names FOLDER...    names.json: the tokens for padding and unknown text
    reference.py make FOLDER        models of transformers, nanoGPT and TokenFormer, with their logits

Each folder has ids.json. The logits go to logits.json, in float64 where the model can be converted. The tokens that
greedy decoding appends to the ids go to greedy.json.
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

NEW = 12
TEXT = "It is not in the stars to hold our destiny but in ourselves; the fault, dear Brutus, is ours. "
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def logits(folders):
    for folder in map(Path, folders):
        # The code of every exported model has the same name.
        model = transformers.AutoModelForCausalLM.from_pretrained(folder.resolve(), trust_remote_code=True).eval()
        record(folder, lambda ids: both(model, ids, folder), lambda ids: greedy(model, ids))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder.resolve(), trust_remote_code=True)
        text = (folder / "text.txt").read_bytes().decode()
        ids = tokenizer(text, add_special_tokens=False).input_ids
        (folder / "encoded.json").write_text(json.dumps(ids))
        (folder / "decoded.txt").write_bytes(tokenizer.decode(ids).encode())


def names(folders):
    for folder in map(Path, folders):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder.resolve(), trust_remote_code=True)
        (folder / "names.json").write_text(json.dumps([tokenizer.pad_token, tokenizer.unk_token]))


def both(model, ids, folder):
    """Returns the logits in f64, and writes the largest error of the logits in f32."""
    rounded = model(ids).logits.double()
    exact = model.double()(ids).logits
    (folder / "rounding.json").write_text(json.dumps((rounded - exact).abs().max().item()))
    return exact


def greedy(model, ids):
    model.generation_config.eos_token_id = None
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)


def record(folder, forward, generate=None):
    ids = torch.tensor([json.loads((folder / "ids.json").read_text())])
    with torch.no_grad():
        if generate:
            new = generate(ids)[0, ids.shape[1] :]
            (folder / "greedy.json").write_text(json.dumps(new.tolist()))
        found = forward(ids)[0]
    (folder / "logits.json").write_text(json.dumps(found.double().tolist()))


def randomise(tensors, size):
    """Adds noise to the weights, so that no weight has a special value, such as a zero bias."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in tensors:
            tensor.add_(torch.randn(tensor.shape, generator=generator) * size)


def make(out):
    out.mkdir()
    bpe = train_tokenizer()
    size = bpe.get_vocab_size()
    ids = bpe.encode(TEXT).ids[:20]

    def folder(name):
        (out / name).mkdir()
        (out / name / "ids.json").write_text(json.dumps(ids))
        return out / name

    sizes = dict(n_layer=2, n_head=3, n_embd=48, n_positions=64, bos_token_id=0, eos_token_id=0)
    no_dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    kinds = {
        "safetensors": {},
        "padded": dict(vocab_size=size + 21),
        "untied": dict(tie_word_embeddings=False, n_inner=100, activation_function="gelu"),
        "relu": dict(scale_attn_by_inverse_layer_idx=True, activation_function="relu", layer_norm_epsilon=1e-3),
        "sharded": {},
        "zip": {},
        "old": {},
        "124m": dict(vocab_size=50257, n_layer=12, n_head=12, n_embd=768, n_positions=1024),
    }
    for name, changes in kinds.items():
        config = transformers.GPT2Config(**{"vocab_size": size, **sizes, **no_dropout, **changes})
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config).eval()
        # With larger weights, logits are too large for a precision of 1e-5 in f32.
        randomise(model.parameters(), 0.01 if name == "124m" else 0.1)
        there = folder(name)
        if name in ("zip", "old"):
            config.save_pretrained(there)
            state = model.state_dict()
            # Older versions of transformers saved their masks, and sliced tensors have strides.
            state["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.bool).tril()
            state["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
            weight = state["transformer.h.1.mlp.c_fc.weight"]
            state["transformer.h.1.mlp.c_fc.weight"] = weight.T.contiguous().T
            torch.save(state, there / "pytorch_model.bin", _use_new_zipfile_serialization=name == "zip")
        elif name == "sharded":
            model.save_pretrained(there, max_shard_size="100KB")
            assert not (there / "model.safetensors").exists()
        else:
            model.save_pretrained(there)
        if name == "padded":
            # Writes the two files that GPT-2 had before tokenizer.json.
            bpe.model.save(str(there))
        else:
            bpe.save(str(there / "tokenizer.json"))
        record(there, lambda ids: model.double()(ids).logits, lambda ids: greedy(model, ids))
    for bias in (True, False):
        there = folder(f"nanogpt-{'bias' if bias else 'plain'}")
        nano_gpt(there, size, bias)
        bpe.save(str(there / "tokenizer.json"))
    for name in ("tokenformer", "tokenformer-sequential"):
        there = folder(name)
        tokenformer(there, size + 5, "sequential." if "-" in name else "")
        bpe.save(str(there / "tokenizer.json"))


def train_tokenizer():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    bpe.train_from_iterator([TEXT], trainer)
    return bpe


def nano_gpt(there, size, bias):
    """Writes a checkpoint in nanoGPT's layout. train.py saves these entries, with a prefix after torch.compile."""
    layers, heads, width, context = 2, 3, 48, 64
    torch.manual_seed(2)
    state = {"transformer.wte.weight": (size, width), "transformer.wpe.weight": (context, width)}
    for layer in range(layers):
        at = f"transformer.h.{layer}."
        shapes = {
            "ln_1": (width,),
            "attn.c_attn": (3 * width, width),
            "attn.c_proj": (width, width),
            "ln_2": (width,),
            "mlp.c_fc": (4 * width, width),
            "mlp.c_proj": (width, 4 * width),
        }
        for name, shape in shapes.items():
            state[f"{at}{name}.weight"] = shape
            if bias:
                state[f"{at}{name}.bias"] = shape[:1]
    state["transformer.ln_f.weight"] = (width,)
    if bias:
        state["transformer.ln_f.bias"] = (width,)
    state = {name: torch.randn(shape) * 0.2 for name, shape in state.items()}
    state["lm_head.weight"] = state["transformer.wte.weight"]

    def forward(ids):
        w = lambda name: state.get(f"transformer.{name}")
        linear = lambda x, name: F.linear(x, w(f"{name}.weight"), w(f"{name}.bias"))
        norm = lambda x, name: F.layer_norm(x, (width,), w(f"{name}.weight"), w(f"{name}.bias"), 1e-5)
        x = w("wte.weight")[ids] + w("wpe.weight")[: ids.shape[1]]
        for layer in range(layers):
            at = f"h.{layer}."
            split = lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2)
            q, k, v = map(split, linear(norm(x, at + "ln_1"), at + "attn.c_attn").split(width, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(y.transpose(1, 2).flatten(2), at + "attn.c_proj")
            x = x + linear(F.gelu(linear(norm(x, at + "ln_2"), at + "mlp.c_fc")), at + "mlp.c_proj")
        return norm(x, "ln_f") @ state["lm_head.weight"].T

    arguments = dict(
        n_layer=layers, n_head=heads, n_embd=width, block_size=context, bias=bias, vocab_size=size, dropout=0.1
    )
    checkpoint = {
        "model": {("_orig_mod." if bias else "") + name: tensor for name, tensor in state.items()},
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 6e-4, "betas": (0.9, 0.95)}]},
        "model_args": arguments,
        "iter_num": 100,
        "best_val_loss": torch.tensor(2.5),
        "config": {"dataset": "shakespeare_char", "compile": True, "learning_rate": 1e-3},
    }
    torch.save(checkpoint, there / "ckpt.pt")
    record(there, forward)


def tokenformer(there, size, prefix):
    """Writes weights in the layout of the authors' code, which is a numbered list of modules."""
    layers, heads, width, pairs, ffn = 2, 4, 64, 29, 51
    torch.manual_seed(3)
    draw = lambda *shape: torch.randn(shape) * 0.3
    pattention = lambda at, n: {f"{at}.key_param_tokens": draw(n, width), f"{at}.value_param_tokens": draw(n, width)}
    table = "0.word_embeddings.weight" if prefix else "tied_modules.embed.word_embeddings.weight"
    state = {table: draw(size, width)}
    for layer in range(layers):
        for part in ("query", "key", "value", "proj"):
            state |= pattention(f"{layer + 2}.attention.{part}", pairs)
        state |= pattention(f"{layer + 2}.mlp", ffn)
        state[f"{layer + 2}.attention.rotary_emb.inv_freq"] = 10_000 ** -(torch.arange(0, 2, 2) / 2)
    end = layers + 3
    state |= {f"{end}.norm.weight": 1 + draw(width), f"{end}.norm.bias": draw(width)}

    def theta(x, at):
        keys, values = state[f"{at}.key_param_tokens"], state[f"{at}.value_param_tokens"]
        a = x @ keys.T
        a = a / a.norm(dim=-1, keepdim=True) * math.sqrt(a.shape[-1])
        return F.gelu(a) @ values

    def rotate(x):
        # Rotates a quarter of each head. The first half of this quarter is paired with the second half.
        count = x.shape[-1] // 4
        angle = torch.arange(x.shape[2])[:, None] * 10_000 ** -(torch.arange(0, count, 2) / count)
        angle = torch.cat([angle, angle], -1)
        rotated, rest = x[..., :count], x[..., count:]
        a, b = rotated.chunk(2, -1)
        return torch.cat([rotated * angle.cos() + torch.cat([-b, a], -1) * angle.sin(), rest], -1)

    def forward(ids):
        x = state[table][ids]
        for layer in range(layers):
            at = f"{layer + 2}.attention."
            split = lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2)
            n = F.layer_norm(x, (width,), eps=1e-5)
            q, k, v = (split(theta(n, at + part)) for part in ("query", "key", "value"))
            y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + theta(y.transpose(1, 2).flatten(2), at + "proj")
            x = x + theta(F.layer_norm(x, (width,), eps=1e-5), f"{layer + 2}.mlp")
        x = F.layer_norm(x, (width,), state[f"{end}.norm.weight"], state[f"{end}.norm.bias"], 1e-5)
        return x @ state[table].T

    record(there, forward)
    torch.save({prefix + name: tensor for name, tensor in state.items()}, there / "pytorch_model.bin")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["logits", *folders]:
            logits(folders)
        case ["names", *folders]:
            names(folders)
        case ["make", out]:
            make(Path(out))
        case _:
            sys.exit(__doc__)
