def gpt2_norm(config, here):
    """Builds the norm of a branch, or the identity if `here` is false."""
    return Norm(config["width"], config["norm_eps"], scale_and_shift(config["bias"])) if here else nn.Identity()


class Gpt2Attention(nn.Module):
    """attention(norm(x))."""

    def __init__(self, config, layer, frame):
        super().__init__()
        width, heads, bias = config["width"], config["n_head"], config["bias"]
        self.heads = heads
        self.norm = gpt2_norm(config, frame.pre_norm)
        self.parts = 3 if frame.own_values else 2
        self.qkv = Linear(width, self.parts * width, bias)
        self.proj = Linear(width, width, bias)
        self.scale = attention_scale(config, width // heads, lambda base: base["width"] // base["n_head"])
        if config["inverse_layer_scale"]:
            self.scale /= layer + 1

    def forward(self, x, change=unchanged):
        u = normed(self.norm, x)
        q, k, *v = (split_heads(w(each), self.heads) for w, each in zip(self.qkv.split(self.parts), u))
        q, k, v = change([q, k, *(v or [k])], u)
        return self.proj(merge_heads(causal_attention(q, k, v, self.scale)))


class Gpt2Mlp(nn.Module):
    """proj(activation(fc(norm(x))))."""

    def __init__(self, config, frame):
        super().__init__()
        width, bias = config["width"], config["bias"]
        d_ff = config["d_ff"] or 4 * width
        self.norm = gpt2_norm(config, frame.pre_norm)
        self.fc = Linear(width, d_ff, bias)
        self.proj = Linear(d_ff, width, bias)
        self.activation = ACTIVATIONS[config["activation"]]

    def forward(self, x):
        return self.proj(self.activation(self.fc(self.norm(x))))


def gpt2_embeddings(config, vocab_size, frame):
    norm = frame.final_norm and scale_and_shift(config["bias"])
    return TokenEmbeddings(config, vocab_size, True, norm, config["tied"])


ARCHITECTURES["Gpt2"] = (Gpt2Attention, Gpt2Mlp, gpt2_embeddings)
