def store(w, x):
    """Σ_h w^(h) ⊗ x^(h) (eq. 12): stores data vectors [..., D_v · R] under keys [R, D_k], in [..., D_v · D_k]."""
    return (x.unflatten(-1, (-1, w.shape[0])) @ w).flatten(-2)


def retrieve(r, x):
    """r^(h) ·₁ X for every h (eq. 13): retrieves [..., D_v · R] by keys [R, D_k] from [..., D_v · D_k]."""
    return (x.unflatten(-1, (-1, r.shape[1])) @ r.T).flatten(-2)


def rmt_norm(config, here):
    """Builds a norm of the stream, or the identity if `here` is false."""
    width = config["d_k"] * config["d_v"]
    return Norm(width, config["norm_eps"], "Scale", config["norm"] == "LayerNorm") if here else nn.Identity()


class RmtAttention(nn.Module):
    """Σ_h w_O^(h) ⊗ SHA(Q^(h), K^(h), V^(h)) (eqs. 20-22)."""

    def __init__(self, config, layer, frame):
        super().__init__()
        self.rank, shape = config["rank"], (config["rank"], config["d_k"])
        self.norm = rmt_norm(config, frame.pre_norm)
        self.r_q, self.r_k, self.r_v, self.w_o = (parameter(*shape) for _ in range(4))
        self.alibi = config["positions"] == "Alibi"
        self.scale = attention_scale(config, config["d_v"], lambda base: base["d_v"])
        if config["inverse_layer_scale"]:
            self.scale /= layer + 1

    def forward(self, x, change=unchanged):
        u = normed(self.norm, x)
        heads = lambda r, u: retrieve(r, u).unflatten(-1, (-1, self.rank)).permute(0, 3, 1, 2)
        q, k, v = change([heads(r, each) for r, each in zip((self.r_q, self.r_k, self.r_v), u)], u)
        y = causal_attention(q, k, v, self.scale, self.alibi)
        return store(self.w_o, y.permute(0, 2, 3, 1).flatten(2))


class RmtFeedForward(nn.Module):
    """Σ_h w_FF^(h) ⊗ unvec(W_2 gelu(W_1 X_FF))_h (eqs. 23-25)."""

    def __init__(self, config, frame):
        super().__init__()
        shape, d = (config["rank"], config["d_k"]), config["rank"] * config["d_v"]
        d_ff = config["d_ff"] or 4 * d
        self.norm = rmt_norm(config, frame.pre_norm)
        self.r_ff, self.w_ff = parameter(*shape), parameter(*shape)
        self.w_1, self.w_2 = parameter(d, d_ff), parameter(d_ff, d)
        self.activation = ACTIVATIONS[config["activation"]]

    def forward(self, x):
        x_ff = retrieve(self.r_ff, self.norm(x))
        return store(self.w_ff, self.activation(x_ff @ self.w_1) @ self.w_2)


class RmtTable(nn.Module):
    """Data vectors [rows, D_v · R], and the keys under which they are stored."""

    def __init__(self, config, rows):
        super().__init__()
        self.weight = parameter(rows, config["d_v"] * config["rank"])
        self.key = parameter(config["rank"], config["d_k"])


class RmtUnembedding(nn.Module):
    def __init__(self, config, vocab_size):
        super().__init__()
        self.key = parameter(config["rank"], config["d_k"])
        self.weight = parameter(config["d_v"] * config["rank"], vocab_size)


class RmtEmbeddings(nn.Module):
    """E(S) + P(N) (eqs. 14, 18, 19) and U(LN(X)) (eqs. 17, 26, 27)."""

    def __init__(self, config, vocab_size, frame):
        super().__init__()
        mup, vectors = config["mup"], config["d_v"] * config["rank"]
        self.tokens = RmtTable(config, vocab_size)
        self.positions = RmtTable(config, config["context"]) if config["positions"] == "Learned" else None
        self.norm = rmt_norm(config, frame.final_norm)
        self.unembedding = RmtUnembedding(config, vocab_size)
        self.input = mup["input"] if mup else 1.0
        self.output = mup["output"] * mup["base"]["d_v"] * mup["base"]["rank"] / vectors if mup else 1.0

    def embed(self, ids):
        x = store(self.tokens.key, self.tokens.weight[ids])
        if self.positions is not None:
            x = x + store(self.positions.key, self.positions.weight[: ids.shape[1]])
        return x * self.input

    def unembed(self, x):
        x_u = retrieve(self.unembedding.key, self.norm(x))
        return x_u * self.output @ self.unembedding.weight


ARCHITECTURES["Rmt"] = (RmtAttention, RmtFeedForward, RmtEmbeddings)
