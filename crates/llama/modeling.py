def llama_rms(config, width):
    """The RMS norm of the config, over `width` features."""
    return LlamaRms(width, config["norm_eps"], config["norm"])


class LlamaRms(nn.Module):
    """x / √(mean x² + ε) · γ. scale: Scale, OnePlus (1 + γ) or None."""

    def __init__(self, width, eps, scale):
        super().__init__()
        self.eps, self.offset = eps, 1.0 if scale == "OnePlus" else 0.0
        self.gamma = None if scale == "None" else parameter(width)

    def forward(self, x):
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps)
        return x if self.gamma is None else x * (self.offset + self.gamma)


class LlamaUnit(nn.Module):
    """x / |x|."""

    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)


class LlamaNorms(nn.Module):
    """The norms before and behind a branch. A norm of the sum is norm(x + y), so the branch is norm(x + y) - x."""

    def __init__(self, config):
        super().__init__()
        places, width = config["norm_places"], config["width"]
        self.before = llama_rms(config, width) if places not in ("Behind", "Original") else nn.Identity()
        self.behind = llama_rms(config, width) if places != "Before" else nn.Identity()
        self.of_sum = places in ("Sandwich", "Original")

    def branch(self, x, y):
        """f(x) of the last map y of the branch."""
        return self.behind(x + y) - x if self.of_sum else self.behind(y)


class LlamaCanon(nn.Module):
    """z_t + Σ_j w_j ⊙ z_{t−K+1+j}."""

    def __init__(self, config, channels):
        super().__init__()
        self.taps = parameter(channels, config["kernel"])
        self.residual = config["residual"]

    def forward(self, z):
        kernel, time = self.taps.shape[1], z.shape[1]
        padded = F.pad(z, (0, 0, kernel - 1, 0))
        y = sum(padded[:, j : j + time] * self.taps[:, j] for j in range(kernel))
        return z + y if self.residual else y


def llama_canon(config, place, channels):
    """The Canon layer at `place`, or nothing."""
    canon = config["canon"]
    return LlamaCanon(canon, channels) if canon and place in canon["places"] else nn.Identity()


def llama_rotate(config, x):
    """Rotary positions of x [batch, heads, time, d]."""
    d = x.shape[-1]
    n = int(d * config["share"])
    if n == 0:
        return x
    f = config["base"] ** (-torch.arange(0, n, 2, dtype=torch.float64, device=x.device) / n)
    if config["scaling"]:
        s = config["scaling"]
        waves = s["original"] * f / (2 * math.pi)
        kept = ((waves - s["low"]) / (s["high"] - s["low"])).clamp(0, 1)
        f = (1 - kept) * f / s["factor"] + kept * f
    sign = -1.0 if config["backwards"] else 1.0
    angle = torch.arange(x.shape[2], device=x.device)[:, None] * f * sign
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    y, rest = x[..., :n], x[..., n:]
    if config["pairs"] == "Halves":
        a, b = y.chunk(2, -1)
        y = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    else:
        a, b = y[..., 0::2], y[..., 1::2]
        y = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([y, rest], -1)


class LlamaAttention(nn.Module):
    """attention(norm(x)), with groups of query heads."""

    def __init__(self, config, layer):
        super().__init__()
        width, self.heads = config["width"], config["n_head"]
        self.kv_heads = config["n_kv_head"] or self.heads
        d = config["head_dim"] or width // self.heads
        of_q, of_kv, bias = self.heads * d, self.kv_heads * d, config["bias"]
        self.config = config
        self.norms = LlamaNorms(config)
        self.canon_a = llama_canon(config, "A", width)
        self.q = Linear(width, of_q, bias != "None")
        self.k = Linear(width, of_kv, bias != "None")
        self.v = Linear(width, of_kv, bias == "Qkv")
        norm = config["qk_norm"]
        if norm is None or norm == "Unit":
            self.q_norm = self.k_norm = LlamaUnit() if norm else nn.Identity()
        else:
            self.q_norm, self.k_norm = (llama_rms(config, n if norm == "All" else d) for n in (of_q, of_kv))
        self.canon_b = llama_canon(config, "B", of_q + 2 * of_kv)
        gate = {None: 0, "PerHead": self.heads, "PerCoordinate": of_q}[config["gate"]]
        self.gate = Linear(width, gate, bias == "Qkv") if gate else None
        self.proj = Linear(of_q, width, config["proj_bias"])
        self.scale = config["attention_scale"] or d**-0.5
        windows = config["windows"]
        self.window = windows[layer % len(windows)] if windows else None

    def forward(self, x):
        u = self.canon_a(self.norms.before(x))
        q, k, v = self.q(u), self.k(u), self.v(u)
        over_all, late = self.config["qk_norm"] == "All", self.config["qk_norm_late"]
        if over_all:
            q, k = self.q_norm(q), self.k_norm(k)
        widths = [q.shape[-1], k.shape[-1], v.shape[-1]]
        q, k, v = self.canon_b(torch.cat([q, k, v], -1)).split(widths, -1)
        q, k, v = split_heads(q, self.heads), split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
        turn = lambda x: llama_rotate(self.config["rotary"], x)
        norms = [nn.Identity()] * 2 if over_all else [self.q_norm, self.k_norm]
        q, k = (
            (norm(turn(x)) if late else turn(norm(x))) * self.config["qk_scale"]
            for norm, x in zip(norms, (q, k))
        )
        y = self.attend(q, k, v)
        if self.gate is not None:
            y = y * split_heads(torch.sigmoid(self.gate(u)), self.heads)
        return self.norms.branch(x, self.proj(merge_heads(y)))

    def attend(self, q, k, v):
        group, cap = self.heads // self.kv_heads, self.config["attention_cap"]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.transpose(-1, -2) * self.scale
        if cap:
            scores = cap * torch.tanh(scores / cap)
        position = torch.arange(q.shape[2], device=q.device)
        distance = position[:, None] - position[None, :]
        hidden = distance < 0
        if self.window:
            hidden = hidden | (distance >= self.window)
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


class LlamaMlp(nn.Module):
    """(act(u · gate) ⊙ (u · fc)) · proj with u = norm(x), or act(u · fc) · proj."""

    def __init__(self, config):
        super().__init__()
        width, bias, gated = config["width"], config["mlp_bias"], config["gated"]
        d_ff = config["d_ff"] or (-(-(8 * width) // 3) + 7) // 8 * 8 if gated else config["d_ff"] or 4 * width
        self.norms = LlamaNorms(config)
        self.canon_c = llama_canon(config, "C", width)
        self.gate = Linear(width, d_ff, bias) if gated else None
        self.fc = Linear(width, d_ff, bias)
        self.canon_d = llama_canon(config, "D", 2 * d_ff if gated else d_ff)
        self.proj = Linear(d_ff, width, bias)
        self.activation = ACTIVATIONS[config["activation"]]

    def forward(self, x):
        u = self.canon_c(self.norms.before(x))
        if self.gate is None:
            hidden = self.activation(self.canon_d(self.fc(u)))
        else:
            gate, fc = self.canon_d(torch.cat([self.gate(u), self.fc(u)], -1)).chunk(2, -1)
            hidden = self.activation(gate) * fc
        return self.norms.branch(x, self.proj(hidden))


class LlamaEmbeddings(nn.Module):
    """x_0 = tokens[ids], logits = norm(x_L) · unembedding."""

    def __init__(self, config, vocab_size):
        super().__init__()
        width, self.cap = config["width"], config["logit_cap"]
        self.tokens = nn.Embedding(vocab_size, width)
        self.scale = math.sqrt(width) if config["scaled_embedding"] else 1.0
        normed = config["normed_embedding"]
        self.input_norm = LlamaRms(width, config["norm_eps"], "None") if normed else nn.Identity()
        self.norm = llama_rms(config, width)
        self.unembedding = None if config["tied"] else Linear(width, vocab_size, False)

    def embed(self, ids):
        return self.input_norm(self.tokens(ids) * self.scale)

    def unembed(self, x):
        x = self.norm(x)
        z = x @ self.tokens.weight.T if self.unembedding is None else self.unembedding(x)
        return self.cap * torch.tanh(z / self.cap) if self.cap else z


ARCHITECTURES["Llama"] = (LlamaAttention, LlamaMlp, LlamaEmbeddings)
