class HybridNorm(nn.Module):
    """y = x + MHA(x),  each head of which reads RMS_q(q), RMS_k(k), RMS_v(v)
    u = N(y)
    x' = u + MLP(u)

    With `first_pre`, the first layer is y = x + MHA(N(x)) and x' = y + MLP(N(y)). The heads of this layer have their
    norms too.
    """

    def __init__(self, config, on, i):
        super().__init__()
        is_attention, is_pre = on.is_attention(i), config["first_pre"] and on.layer(i) == 0
        has_norm = is_pre or not is_attention
        self.norm = norm_of(config["norm"], on.width) if has_norm else nn.Identity()
        of_heads = {"Rms": {"scale": "Scale", "eps": config["norm_eps"]}}
        self.heads = QkvNorms(of_heads, on.d) if is_attention else None
        self.from_norm = not (is_attention or is_pre)

    def update(self, stream, f):
        x, u = stream.x, self.norm(stream.x)
        fu = f(u) if self.heads is None else f(u, lambda heads, u: self.heads(heads))
        return Stream((u if self.from_norm else x) + fu, stream.carried)


CONNECTIONS["HybridNorm"] = Design(HybridNorm, frame=lambda config: Frame(pre_norm=False))
