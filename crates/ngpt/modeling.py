def ngpt_unit(x):
    """N(x) = x / |x|, and 0 for 0."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-20) * x.shape[-1] ** -0.5


class NgptFactor(nn.Module):
    """The factor p · init / scale, which is stored as p."""

    def __init__(self, features, init, scale):
        super().__init__()
        self.stored, self.ratio = parameter(features), init / scale

    def forward(self):
        return self.stored * self.ratio


def ngpt_step(branch, h, y):
    """f(h) for the step h + f(h) = N(N(h) + |α| (N(y) − N(h)))."""
    start = ngpt_unit(h)
    return ngpt_unit(start + branch.alpha().abs() * (ngpt_unit(y) - start)) - h


def ngpt_angles(config, x):
    """The position times each frequency, [time, d / 2]."""
    d = x.shape[-1]
    f = config["rotary_base"] ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    return torch.arange(x.shape[2], device=x.device)[:, None] * f


def ngpt_positions(config, x):
    """Encodes the positions in x [batch, heads, time, d]: a rotation, or the products of the published code."""
    angle = ngpt_angles(config, x)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    if config["positions"] == "Rotary":
        pair = [a * cos - b * sin, b * cos + a * sin]
    else:
        first, second = torch.stack([sin, cos], -1).flatten(-2).chunk(2, -1)
        pair = [-b * second, a * first]
    return torch.stack(pair, -1).flatten(-2)


class NgptAttention(nn.Module):
    """The step towards attention(h)."""

    def __init__(self, config, layer, frame):
        super().__init__()
        width, self.heads = config["width"], config["n_head"]
        self.config = config
        self.alpha = NgptFactor(width, 0.05, width**-0.5)
        self.q, self.k, self.v = (Linear(width, width, False) for _ in range(3))
        self.qk_scale = NgptFactor(width, 1.0, width**-0.5)
        self.proj = Linear(width, width, False)

    def forward(self, h, change=unchanged):
        u = normed(nn.Identity(), h)
        maps = (self.q, self.k, self.v)
        q, k, v = change([split_heads(w(each), self.heads) for w, each in zip(maps, u)], u)
        s_qk = self.qk_scale().unflatten(0, (self.heads, 1, -1))
        q, k = (ngpt_unit(ngpt_positions(self.config, x)) * s_qk for x in (q, k))
        y = causal_attention(q, k, v, math.sqrt(q.shape[-1]))
        return ngpt_step(self, h, self.proj(merge_heads(y)))


class NgptMlp(nn.Module):
    """The step towards mlp(h)."""

    def __init__(self, config, frame):
        super().__init__()
        width = config["width"]
        d_ff = config["d_ff"] or 4 * width
        self.alpha = NgptFactor(width, 0.05, width**-0.5)
        self.fc, self.gate = Linear(width, d_ff, False), Linear(width, d_ff, False)
        self.fc_scale, self.gate_scale = NgptFactor(d_ff, 1.0, 1.0), NgptFactor(d_ff, 1.0, 1.0)
        self.proj = Linear(d_ff, width, False)

    def forward(self, h):
        root = math.sqrt(h.shape[-1])
        u, v = self.fc(h) * self.fc_scale() * root, self.gate(h) * self.gate_scale() * root
        return ngpt_step(self, h, self.proj(u * F.silu(v)))


class NgptEmbeddings(nn.Module):
    """h_0 = tokens[ids], logits = s_z (h · unembedding)."""

    def __init__(self, config, vocab_size, frame):
        super().__init__()
        width = config["width"]
        self.tokens = nn.Embedding(vocab_size, width)
        self.norm = nn.Identity()
        self.unembedding = Linear(width, vocab_size, False)
        self.logit_scale = NgptFactor(vocab_size, 1.0, width**-0.5)

    def embed(self, ids):
        return self.tokens(ids)

    def unembed(self, h):
        return self.unembedding(h) * self.logit_scale()


ARCHITECTURES["Ngpt"] = (NgptAttention, NgptMlp, NgptEmbeddings)
