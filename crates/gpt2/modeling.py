class Gpt2Attention(nn.Module):
    """attention(norm(x))."""

    def __init__(self, config, layer):
        super().__init__()
        width, heads, bias = config["width"], config["n_head"], config["bias"]
        self.heads = heads
        self.norm = Norm(width, config["norm_eps"], "ScaleAndShift" if bias else "Scale")
        self.qkv = Linear(width, 3 * width, bias)
        self.proj = Linear(width, width, bias)
        self.scale = attention_scale(config, width // heads, lambda base: base["width"] // base["n_head"])
        if config["inverse_layer_scale"]:
            self.scale /= layer + 1

    def forward(self, x):
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.norm(x)).chunk(3, -1))
        return self.proj(merge_heads(causal_attention(q, k, v, self.scale)))


class Gpt2Mlp(nn.Module):
    """proj(activation(fc(norm(x))))."""

    def __init__(self, config):
        super().__init__()
        width, bias = config["width"], config["bias"]
        d_ff = config["d_ff"] or 4 * width
        self.norm = Norm(width, config["norm_eps"], "ScaleAndShift" if bias else "Scale")
        self.fc = Linear(width, d_ff, bias)
        self.proj = Linear(d_ff, width, bias)
        self.activation = ACTIVATIONS[config["activation"]]

    def forward(self, x):
        return self.proj(self.activation(self.fc(self.norm(x))))


def gpt2_embeddings(config, vocab_size):
    norm = "ScaleAndShift" if config["bias"] else "Scale"
    return TokenEmbeddings(config, vocab_size, True, norm, config["tied"])


ARCHITECTURES["Gpt2"] = (Gpt2Attention, Gpt2Mlp, gpt2_embeddings)
