def llama_rms(config, width):
    """Builds the config's RMS norm over `width` features."""
    return Norm(width, config["norm_eps"], config["norm"], centred=False)


class LlamaUnit(nn.Module):
    """x / |x|."""

    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)


class LlamaNorms(nn.Module):
    """The norms before and after a branch. A norm of the sum is norm(x + y), so the branch is norm(x + y) - x."""

    def __init__(self, config, frame):
        super().__init__()
        places, width = config["norm_places"], config["width"]
        before = frame.pre_norm and places not in ("Behind", "Original")
        self.before = llama_rms(config, width) if before else nn.Identity()
        self.behind = llama_rms(config, width) if places != "Before" else nn.Identity()
        self.of_sum = places in ("Sandwich", "Original")

    def branch(self, x, y):
        """f(x), from the output y of the branch's last projection."""
        return self.behind(x + y) - x if self.of_sum else self.behind(y)


class LlamaCanon(nn.Module):
    """z_t + Σ_j w_j ⊙ z_{t−K+1+j}."""

    def __init__(self, config, channels):
        super().__init__()
        self.taps = parameter(channels, config["kernel"])
        self.residual = config["residual"]

    def forward(self, z):
        y = causal_sum(z, self.taps)
        return z + y if self.residual else y


def llama_canon(config, place, channels):
    """Builds the Canon layer at `place`, or the identity if there is none."""
    canon = config["canon"]
    return LlamaCanon(canon, channels) if canon and place in canon["places"] else nn.Identity()


def llama_rotate(config, x):
    """Applies rotary positions to x [batch, heads, time, d]."""
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
    """attention(norm(x)), where each key-value head serves a group of query heads."""

    def __init__(self, config, layer, frame):
        super().__init__()
        width, self.heads = config["width"], config["n_head"]
        self.kv_heads = config["n_kv_head"] or self.heads
        d = config["head_dim"] or width // self.heads
        of_q, of_kv, bias = self.heads * d, self.kv_heads * d, config["bias"]
        self.config = config
        self.norms = LlamaNorms(config, frame)
        self.canon_a = llama_canon(config, "A", width)
        self.q = Linear(width, of_q, bias != "None")
        self.k = Linear(width, of_kv, bias != "None")
        self.v = Linear(width, of_kv, bias == "Qkv") if frame.own_values else None
        norm = config["qk_norm"]
        if norm is None or norm == "Unit":
            self.q_norm = self.k_norm = LlamaUnit() if norm else nn.Identity()
        else:
            self.q_norm, self.k_norm = (llama_rms(config, n if norm == "All" else d) for n in (of_q, of_kv))
        self.canon_b = llama_canon(config, "B", of_q + (2 if self.v else 1) * of_kv)
        gate = {None: 0, "PerHead": self.heads, "PerCoordinate": of_q}[config["gate"]]
        self.gate = Linear(width, gate, bias == "Qkv") if gate else None
        self.proj = Linear(of_q, width, config["proj_bias"])
        self.scale = config["attention_scale"] or d**-0.5
        windows = config["windows"]
        self.window = windows[layer % len(windows)] if windows else None

    def forward(self, x, change=unchanged):
        u = normed(lambda x: self.canon_a(self.norms.before(x)), x)
        maps = [self.q, self.k, self.v] if self.v else [self.q, self.k]
        q, k, *v = (w(each) for w, each in zip(maps, u))
        over_all, late = self.config["qk_norm"] == "All", self.config["qk_norm_late"]
        if over_all:
            q, k = self.q_norm(q), self.k_norm(k)
        widths = [x.shape[-1] for x in (q, k, *v)]
        q, k, *v = self.canon_b(torch.cat([q, k, *v], -1)).split(widths, -1)
        heads = [split_heads(q, self.heads), *(split_heads(x, self.kv_heads) for x in (k, *(v or [k])))]
        q, k, v = change(heads, u)
        turn = lambda x: llama_rotate(self.config["rotary"], x)
        norms = [nn.Identity()] * 2 if over_all else [self.q_norm, self.k_norm]
        q, k = (
            (norm(turn(x)) if late else turn(norm(x))) * self.config["qk_scale"]
            for norm, x in zip(norms, (q, k))
        )
        y = self.attend(q, k, v)
        if self.gate is not None:
            y = y * split_heads(torch.sigmoid(self.gate(u[0])), self.heads)
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

    def __init__(self, config, frame):
        super().__init__()
        width, bias, gated = config["width"], config["mlp_bias"], config["gated"]
        d_ff = config["d_ff"] or (-(-(8 * width) // 3) + 7) // 8 * 8 if gated else config["d_ff"] or 4 * width
        self.norms = LlamaNorms(config, frame)
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

    def __init__(self, config, vocab_size, frame):
        super().__init__()
        width, self.cap = config["width"], config["logit_cap"]
        self.tokens = nn.Embedding(vocab_size, width)
        self.scale = math.sqrt(width) if config["scaled_embedding"] else 1.0
        normed = config["normed_embedding"]
        self.input_norm = Norm(width, config["norm_eps"], "None", centred=False) if normed else nn.Identity()
        self.norm = llama_rms(config, width) if frame.final_norm else nn.Identity()
        self.unembedding = None if config["tied"] else Linear(width, vocab_size, False)

    def embed(self, ids):
        return self.input_norm(self.tokens(ids) * self.scale)

    def unembed(self, x):
        x = self.norm(x)
        z = x @ self.tokens.weight.T if self.unembedding is None else self.unembedding(x)
        return self.cap * torch.tanh(z / self.cap) if self.cap else z


ARCHITECTURES["Llama"] = (LlamaAttention, LlamaMlp, LlamaEmbeddings)
