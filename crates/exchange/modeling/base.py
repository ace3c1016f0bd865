import itertools
import math
from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

ARCHITECTURES = {}

ACTIVATIONS = {
    "GeluTanh": lambda x: F.gelu(x, approximate="tanh"),
    "GeluErf": F.gelu,
    "Relu": F.relu,
    "SquaredRelu": lambda x: F.relu(x) ** 2,
    "Silu": F.silu,
}


def parameter(*shape):
    return nn.Parameter(torch.empty(*shape))


def variant(value):
    """The name and the fields of an enum's value: "A", or {"A": {...}}."""
    return (value, {}) if isinstance(value, str) else next(iter(value.items()))


class Linear(nn.Module):
    """x · weight + bias, with weight [in, out]."""

    def __init__(self, d_in, d_out, bias):
        super().__init__()
        self.weight = parameter(d_in, d_out)
        self.bias = parameter(d_out) if bias else None

    def forward(self, x):
        y = x @ self.weight
        return y if self.bias is None else y + self.bias

    def split(self, parts):
        """The maps to each of equal parts of the output."""
        weights = self.weight.chunk(parts, 1)
        biases = [0.0] * parts if self.bias is None else self.bias.chunk(parts)
        return [lambda x, w=w, b=b: x @ w + b for w, b in zip(weights, biases)]


def standardised(x, eps, centred=True):
    """x / √(mean x² + ε), after the mean of x is subtracted if it is centred."""
    if centred:
        x = x - x.mean(-1, keepdim=True)
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def scale_and_shift(bias):
    """The parameters of a norm that has a shift if maps have biases."""
    return "ScaleAndShift" if bias else "Scale"


class Norm(nn.Module):
    """Layer norm, or RMS norm if it is not centred. params: None, Scale, OnePlus (1 + γ) or ScaleAndShift."""

    def __init__(self, width, eps, params="Scale", centred=True):
        super().__init__()
        self.eps, self.centred, self.offset = eps, centred, 1.0 if params == "OnePlus" else 0.0
        self.gamma = None if params == "None" else parameter(width)
        self.beta = parameter(width) if params == "ScaleAndShift" else None

    def forward(self, x):
        return self.scaled(standardised(x, self.eps, self.centred))

    def scaled(self, x):
        """x ⊙ γ + β."""
        x = x if self.gamma is None else x * (self.offset + self.gamma)
        return x if self.beta is None else x + self.beta


def normed(norm, x):
    """norm(x) for q, k and v. x is one input, or a list of one for each."""
    return [norm(each) for each in x] if isinstance(x, list) else [norm(x)] * 3


def unchanged(heads, u):
    """Leaves the heads of attention as they are: [q, k, v], each [batch, heads, time, d], before positions. In a layer
    without a value projection, v is k.

    A connection can pass another such function to attention. u are the inputs of q, k and v after the norm.
    """
    return heads


def causal_sum(z, w):
    """Σ_j w_j ⊙ z_{t−K+1+j} for z [batch, time, channels] and w [channels, K]."""
    kernel, time = w.shape[1], z.shape[1]
    padded = F.pad(z, (0, 0, kernel - 1, 0))
    return sum(padded[:, j : j + time] * w[:, j] for j in range(kernel))


def causal_attention(q, k, v, scale, alibi=False):
    """softmax(q kᵀ · scale + bias + causal mask) v, all [batch, heads, time, d]."""
    heads, time = q.shape[1:3]
    position = torch.arange(time, device=q.device)
    distance = position[None, :] - position[:, None]
    scores = q @ k.transpose(-1, -2) * scale
    if alibi:
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=q.device) / heads)
        scores = scores + distance * slopes[:, None, None].to(scores.dtype)
    return scores.masked_fill(distance > 0, float("-inf")).softmax(-1) @ v


def attention_scale(config, d, base_d):
    """The scale of attention scores: 1/√d for heads of width d, or the scale of μP."""
    mup = config["mup"]
    return mup["attention"] * math.sqrt(base_d(mup["base"])) / d if mup else 1 / math.sqrt(d)


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).flatten(2)


class TokenEmbeddings(nn.Module):
    """x_0 = tokens[ids] + positions, logits = norm(x_L) · unembedding. Without `norm`, there is no final norm."""

    def __init__(self, config, vocab_size, positions, norm, tied):
        super().__init__()
        width, mup = config["width"], config["mup"]
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(config["context"], width) if positions else None
        self.norm = Norm(width, config["norm_eps"], norm) if norm else nn.Identity()
        self.unembedding = None if tied else Linear(width, vocab_size, False)
        self.input = mup["input"] if mup else 1.0
        self.output = mup["output"] * mup["base"]["width"] / width if mup else 1.0

    def embed(self, ids):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        return x * self.input

    def unembed(self, x):
        x = self.norm(x) * self.output
        return x @ self.tokens.weight.T if self.unembedding is None else self.unembedding(x)
