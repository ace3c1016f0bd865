#!/usr/bin/env python3
"""Times a training step of GPT-2 or Llama in PyTorch, to compare with `residual-zoo bench`.

    python benches/pytorch_step.py --vocabulary 56                   # the model of experiments/gpt2/bench.ron
    python benches/pytorch_step.py --form explicit --threads 1
    python benches/pytorch_step.py --kv-heads 2 --vocabulary 56      # the model of experiments/llama/bench.ron

A step draws the batch, runs the forward and backward passes, clips the gradients, updates the weights and
reads the loss. The tokens are random: their content does not affect the time. The last line of the output is
a JSON object with the times of the median, the fastest and the slowest step, in seconds.
"""

import argparse
import json
import os
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 1_000_000


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, args):
        super().__init__()
        width, bias = args.width, args.bias
        self.heads, self.explicit = args.heads, args.form == "explicit"
        self.norm_1 = nn.LayerNorm(width, bias=bias)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.attention_out = nn.Linear(width, width, bias=bias)
        self.norm_2 = nn.LayerNorm(width, bias=bias)
        self.mlp_in = nn.Linear(width, 4 * width, bias=bias)
        self.mlp_out = nn.Linear(4 * width, width, bias=bias)
        future = torch.ones(args.time, args.time, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.explicit:
            scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
            weights = scores.masked_fill(self.future, float("-inf")).softmax(-1)
            y = weights @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attention_out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with learned positions; the token table is also the unembedding."""

    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.vocabulary, args.width)
        self.positions = nn.Parameter(torch.empty(args.time, args.width))
        self.blocks = nn.Sequential(*(Block(args) for _ in range(args.layers)))
        self.norm = nn.LayerNorm(args.width, bias=args.bias)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, targets):
        x = self.norm(self.blocks(self.tokens(ids) + self.positions))
        logits = F.linear(x, self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class LlamaBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), with RMS norm, rotary positions and SwiGLU."""

    def __init__(self, args):
        super().__init__()
        width, self.d, self.kv_heads = args.width, args.width // args.heads, args.kv_heads
        self.explicit = args.form == "explicit"
        hidden = -(-8 * width // 3 // 8) * 8
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, self.kv_heads * self.d, bias=False)
        self.v = nn.Linear(width, self.kv_heads * self.d, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_gate = nn.Linear(width, hidden, bias=False)
        self.mlp_in = nn.Linear(width, hidden, bias=False)
        self.mlp_out = nn.Linear(hidden, width, bias=False)
        future = torch.ones(args.time, args.time, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)
        frequencies = 10_000.0 ** (-torch.arange(0, self.d, 2) / self.d)
        angles = torch.arange(args.time)[:, None] * torch.cat([frequencies, frequencies])
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turn(self, x):
        """Rotary positions, as in `transformers`."""
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-b, a], dim=-1) * self.sin

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = (f(x).view(batch, length, -1, self.d).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.turn(q), self.turn(k)
        k, v = (x.repeat_interleave(q.shape[1] // self.kv_heads, dim=1) for x in (k, v))
        if self.explicit:
            scores = (q @ k.transpose(-2, -1)) * self.d**-0.5
            y = scores.masked_fill(self.future, float("-inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attention_out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        u = self.norm_2(x)
        return x + self.mlp_out(F.silu(self.mlp_gate(u)) * self.mlp_in(u))


class Llama(nn.Module):
    """A Llama with its own unembedding."""

    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.vocabulary, args.width)
        self.blocks = nn.Sequential(*(LlamaBlock(args) for _ in range(args.layers)))
        self.norm = nn.RMSNorm(args.width, eps=1e-5)
        self.unembed = nn.Linear(args.width, args.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, targets):
        logits = self.unembed(self.norm(self.blocks(self.tokens(ids))))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def measure(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    data = torch.randint(args.vocabulary, (TOKENS,))
    model = (Llama if args.kv_heads else Gpt2)(args).to(device)
    # On a CPU, `fused` needs PyTorch 2.4.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    if args.compile:
        model.compile()
    bf16 = args.form == "bf16"
    precision = torch.autocast(args.device, torch.bfloat16) if bf16 else nullcontext()

    def draw():
        starts = torch.randint(TOKENS - args.time, (args.batch,)).tolist()
        windows = torch.stack([data[i : i + args.time + 1] for i in starts]).to(device)
        return windows[:, :-1], windows[:, 1:]

    def step():
        ids, targets = draw()
        with precision:
            loss = model(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        # On a GPU, reading the loss waits for the whole step.
        return loss.item()

    seconds = []
    for i in range(args.warmup + args.steps):
        start = time.perf_counter()
        step()
        if i >= args.warmup:
            seconds.append(time.perf_counter() - start)
    return {
        "model": f"{'Llama' if args.kv_heads else 'GPT-2'}, {args.layers} layers of width {args.width}, "
        f"batch {args.batch} x {args.time}, {args.vocabulary} token ids",
        "form": args.form + ", TF32" * args.tf32 + ", compiled" * args.compile,
        "device": args.device,
        "threads": args.threads,
        "torch": torch.__version__,
        "memory": torch.cuda.max_memory_allocated() if args.device == "cuda" else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "step": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
    }


def options():
    parser = argparse.ArgumentParser(
        description="Times a training step of GPT-2 or Llama in PyTorch.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    sizes = {"layers": 6, "heads": 6, "width": 384, "vocabulary": 65, "batch": 8, "time": 256}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=at_least(1), default=default)
    parser.add_argument("--kv-heads", type=at_least(1), help="time a Llama with this number of key-value heads")
    parser.add_argument("--bias", action=argparse.BooleanOptionalAction, default=False, help="use biases")
    parser.add_argument(
        "--form",
        choices=["fused", "explicit", "bf16"],
        default="fused",
        help="attention in one call, as products and a softmax, or in one call with autocast to bfloat16",
    )
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--tf32", action="store_true", help="compute float32 matrix products in TF32, on a GPU")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=at_least(1), default=cores)
    parser.add_argument("--warmup", type=at_least(0), default=2, help="untimed steps before the timed ones")
    parser.add_argument("--steps", type=at_least(1), default=8, help="timed steps")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the line to this file")
    args = parser.parse_args()
    if args.width % args.heads:
        parser.error(f"--heads {args.heads} does not divide --width {args.width}")
    if args.kv_heads and (args.heads % args.kv_heads or args.bias):
        parser.error("--kv-heads must divide --heads, and a Llama has no --bias")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU")
    return args


def at_least(least):
    def integer(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return integer


if __name__ == "__main__":
    args = options()
    line = json.dumps(measure(args))
    print(line)
    if args.json:
        args.json.write_text(line + "\n")
