class Pattention(nn.Module):
    """Θ(X K_Pᵀ) V_P (eq. 4)."""

    def __init__(self, config, n):
        super().__init__()
        self.keys = parameter(n, config["width"])
        self.values = parameter(n, config["width"])
        self.tau = nn.Parameter(torch.empty(1), requires_grad=False)
        self.normalization = config["normalization"]
        self.activation = ACTIVATIONS[config["activation"]]
        self.eps = config["pattention_eps"]

    def forward(self, x):
        return self.theta(x @ self.keys.T) @ self.values

    def theta(self, a):
        """Applies Θ: eq. 5 and the other rows of Table 4."""
        if self.normalization == "Softmax":
            return a.softmax(-1) * self.tau
        if self.normalization == "L2NormGelu":
            return self.activation(a * self.tau * self.inverse(a.norm(dim=-1, keepdim=True)))
        g = self.activation(a)
        order = 1 if self.normalization == "GeluL1Norm" else 2
        return g * self.tau * self.inverse(g.norm(p=order, dim=-1, keepdim=True))

    def inverse(self, norm):
        """1 / (norm + ε), or 0 if the norm is zero."""
        return torch.where(norm == 0, torch.zeros_like(norm), 1 / (norm + self.eps))


def tokenformer_norm(config, here):
    """Builds the norm of a branch, or the identity if `here` is false."""
    return Norm(config["width"], config["norm_eps"], config["norm_params"]) if here else nn.Identity()


class TokenFormerAttention(nn.Module):
    """MHA(LN(X)) (eqs. 8-10)."""

    def __init__(self, config, layer, frame):
        super().__init__()
        width, heads = config["width"], config["n_head"]
        n = config["n_attn"] or width
        self.heads = heads
        self.norm = tokenformer_norm(config, frame.pre_norm)
        self.q, self.k, self.v, self.o = (Pattention(config, n) for _ in range(4))
        self.scale = attention_scale(config, width // heads, lambda base: base["width"] // base["n_head"])
        position, fields = variant(config["position"])
        self.rotated = int(width // heads * fields["fraction"]) if position == "Rotary" else 0

    def forward(self, x, change=unchanged):
        u = normed(self.norm, x)
        maps = (self.q, self.k, self.v)
        q, k, v = change([split_heads(w(each), self.heads) for w, each in zip(maps, u)], u)
        if self.rotated:
            q, k = rotate(q, self.rotated), rotate(k, self.rotated)
        return self.o(merge_heads(causal_attention(q, k, v, self.scale)))


def rotate(x, rotated):
    """Applies rotary positions to the first `rotated` coordinates of each head."""
    half = rotated // 2
    frequency = 10_000.0 ** (-2.0 * torch.arange(half, dtype=torch.float64, device=x.device) / rotated)
    angle = torch.arange(x.shape[2], device=x.device)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b, rest = x.split([half, half, x.shape[-1] - rotated], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class TokenFormerFeedForward(nn.Module):
    """FFN(LN(X)): a single Pattention (eq. 11)."""

    def __init__(self, config, frame):
        super().__init__()
        self.norm = tokenformer_norm(config, frame.pre_norm)
        self.ffn = Pattention(config, config["n_ffn"] or 4 * config["width"])

    def forward(self, x):
        return self.ffn(self.norm(x))


def tokenformer_embeddings(config, vocab_size, frame):
    norm = frame.final_norm and ("ScaleAndShift" if config["affine_final_norm"] else config["norm_params"])
    return TokenEmbeddings(config, vocab_size, config["position"] == "Learned", norm, True)


ARCHITECTURES["TokenFormer"] = (TokenFormerAttention, TokenFormerFeedForward, tokenformer_embeddings)
