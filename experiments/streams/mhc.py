#!/usr/bin/env python3
"""mHC against the plain residual in PyTorch, from the equations of the paper, as a second form of `mhc_depth`.

    mhc.py TEXT [--layers N] [--seeds K] [--rate PLAIN MHC]

TEXT is tinyshakespeare. For each seed, the script trains a GPT-2 with plain residuals and one with mHC on the same
batches, and prints their validation losses in nats per character. It shares no code with the crates. It needs PyTorch
and no GPU.
"""

import argparse
import math
import statistics

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, CONTEXT, BATCH = 48, 4, 64, 16
STEPS, WARMUP, DECAY, Z_LOSS = 800, 40, 0.1, 1e-4
STREAMS, ROUNDS = 4, 20


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (part.view(b, t, HEADS, d // HEADS).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, 2))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.out = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.out(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class Plain(nn.Module):
    """x + f(x)."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, h):
        return h + self.f(h)


class Mhc(nn.Module):
    """H' = res H + postᵀ f(pre H), equations 7 to 9. H is [batch, time, n, D]."""

    def __init__(self, f):
        super().__init__()
        n = STREAMS
        self.f = f
        self.gamma = nn.Parameter(torch.ones(n * WIDTH))
        # As in Megatron-LM: b = 0, and P by Xavier's uniform rule.
        self.p = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n * WIDTH, n * (n + 2))))
        self.b = nn.Parameter(torch.zeros(n * (n + 2)))
        self.s = nn.Parameter(torch.full((3,), 0.01))

    def forward(self, h):
        n = STREAMS
        r = F.rms_norm(h.flatten(2), (n * WIDTH,), self.gamma, 1e-6)
        z = (r @ self.p).split([n, n, n * n], 2)
        b = self.b.split([n, n, n * n])
        z_pre, z_post, z_res = (s * z + b for s, z, b in zip(self.s, z, b))
        res = z_res.unflatten(2, (n, n)).exp()
        for _ in range(ROUNDS):
            res = res / res.sum(2, keepdim=True)  # columns
            res = res / res.sum(3, keepdim=True)  # rows
        pre, post = torch.sigmoid(z_pre), 2 * torch.sigmoid(z_post)
        x = (pre.unsqueeze(3) * h).sum(2)
        return res @ h + post.unsqueeze(3) * self.f(x).unsqueeze(2)


class Model(nn.Module):
    def __init__(self, layers, vocabulary, connection):
        super().__init__()
        self.n = STREAMS if connection is Mhc else None
        self.token, self.place = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.residuals = nn.ModuleList(connection(f()) for _ in range(layers) for f in (Attention, Mlp))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        # GPT-2, section 2.3, with the standard deviation of Nguyen and Salazar.
        std = math.sqrt(2 / (5 * WIDTH))
        for name, p in self.named_parameters():
            if name.endswith("weight") and p.dim() == 2:
                nn.init.normal_(p, std=std / math.sqrt(2 * layers) if ".out." in name else std)

    def forward(self, ids):
        h = self.token(ids) + self.place.weight
        if self.n:
            h = h.unsqueeze(2).expand(-1, -1, self.n, -1)
        for residual in self.residuals:
            h = residual(h)
        return self.norm(h.sum(2) if self.n else h) @ self.token.weight.T


def learning_rate(step, peak):
    if step < WARMUP:
        return peak * (step + 1) / (WARMUP + 1)
    share = (step - WARMUP) / (STEPS - WARMUP)
    return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2)


def train(connection, layers, text, vocabulary, seed, peak):
    """Returns the validation loss in nats per token."""
    torch.manual_seed(seed)
    model = Model(layers, vocabulary, connection)
    weights = [p for name, p in model.named_parameters() if p.dim() == 2 and "token" not in name and "place" not in name]
    ids = {id(p) for p in weights}
    others = [p for p in model.parameters() if id(p) not in ids]
    groups = [{"params": weights, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)
    draws = torch.Generator().manual_seed(seed)
    cut = len(text) * 9 // 10
    training, validation = text[:cut], text[cut:]
    for step in range(STEPS):
        starts = torch.randint(len(training) - CONTEXT, (BATCH,), generator=draws)
        batch = torch.stack([training[i : i + CONTEXT + 1] for i in starts])
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss = loss + Z_LOSS * torch.logsumexp(logits, 2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, peak)
        optimizer.step()
    with torch.no_grad():
        count = (len(validation) - 1) // CONTEXT
        inputs = validation[: count * CONTEXT].view(count, CONTEXT)
        targets = validation[1 : count * CONTEXT + 1].view(count, CONTEXT)
        parts = zip(inputs.split(128), targets.split(128))
        total = sum(F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item() for x, y in parts)
    return total / (count * CONTEXT)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("text")
    options.add_argument("--layers", type=int, default=12)
    options.add_argument("--seeds", type=int, default=3, choices=range(1, 11), metavar="1 to 10")
    options.add_argument("--rate", type=float, nargs=2, default=[1.2e-2, 1.2e-2], metavar=("PLAIN", "MHC"))
    options = options.parse_args()
    text = open(options.text, encoding="utf-8").read()
    characters = sorted(set(text))
    index = {c: i for i, c in enumerate(characters)}
    ids = torch.tensor([index[c] for c in text])
    differences = []
    for seed in range(options.seeds):
        plain, mhc = (
            train(connection, options.layers, ids, len(characters), seed, rate)
            for connection, rate in zip((Plain, Mhc), options.rate)
        )
        differences.append(mhc - plain)
        print(f"seed {seed}: plain {plain:.4f}, mHC {mhc:.4f}, difference {mhc - plain:+.4f}", flush=True)
    if len(differences) > 1:
        mean, spread = statistics.mean(differences), statistics.stdev(differences)
        # Student's t for a 95 % interval.
        t = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262][len(differences) - 2]
        print(f"mHC minus plain: {mean:+.4f} ± {t * spread / math.sqrt(len(differences)):.4f}")


if __name__ == "__main__":
    main()
