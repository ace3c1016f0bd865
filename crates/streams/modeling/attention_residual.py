class AttentionRead(nn.Module):
    """h_i = Σ_m p_m v_m,  p = softmax_m(q_i · RMSNorm_i(v_m))"""

    def __init__(self, config, width):
        super().__init__()
        self.query = parameter(width)
        self.norm = Norm(width, config["norm_eps"], centred=False)

    def forward(self, sources):
        v = torch.stack(sources, 2)
        p = (self.norm(v) @ self.query).softmax(2)
        return (p[..., None] * v).sum(2)


def attention_sources(stream, i, size):
    """The sources before residual i: x_0, and the sum of each block of `size` residuals that has begun."""
    return [*stream.carried, stream.x] if i % size else list(stream.carried)


class AttentionResidual(nn.Module):
    """f reads h_i, and nothing is added to h_i.

    v_0 is x_0, and v_{m+1} is the sum of the outputs of block m. x is the sum of the current block, and the stream
    carries the earlier sources.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.i, self.size = i, config["block"]
        self.read = AttentionRead(config, on.width) if i > 0 else None

    def update(self, stream, f):
        h = stream.x if self.read is None else self.read(attention_sources(stream, self.i, self.size))
        x = stream.x + f(h) if self.i % self.size else f(h)
        is_last = (self.i + 1) % self.size == 0
        return Stream(x, (*stream.carried, x) if is_last else stream.carried)


class AttentionLastRead(KeepFirst):
    """Reads the sources once more at the end of the stream."""

    def __init__(self, config, on):
        super().__init__()
        self.read = AttentionRead(config, on.width)
        self.count, self.size = on.count, config["block"]

    def close(self, stream):
        return self.read(attention_sources(stream, self.count, self.size))


CONNECTIONS["AttentionResidual"] = Design(AttentionResidual, AttentionLastRead)
