class Node(nn.Module):
    """AGG(x, y, …) = LN(FF([x; y; …]) + x + y + …)      FF: two maps, σ between them"""

    def __init__(self, config, inputs, width):
        super().__init__()
        d_ff, bias = config["d_ff"] or 4 * width, config["bias"]
        self.fc, self.proj = Linear(inputs * width, d_ff, bias), Linear(d_ff, width, bias)
        self.norm = Norm(width, config["norm_eps"], scale_and_shift(bias))

    def forward(self, *inputs):
        return self.norm(self.proj(self.fc(torch.cat(inputs, -1)).sigmoid()) + sum(inputs))


class Iterative(nn.Module):
    """G^1 = H^1,  G^l = AGG(H^l, G^{l-1}). The stream carries G."""

    def __init__(self, config, on, i):
        super().__init__()
        self.node = Node(config, 2, on.width) if i > 0 else None

    def update(self, stream, f):
        h = stream.x + f(stream.x)
        return Stream(h, (h if self.node is None else self.node(h, *stream.carried),))


class LastNode(Ends):
    """The end that returns the last G."""

    def close(self, stream):
        return stream.carried[0]


class Tree(nn.Module):
    """G^1 = AGG(H^1, H^2),  G^i = AGG(H^{2i-1}, H^{2i}, G^{i-1}). Layer 2i + 1 reads G^i, and the stream carries it."""

    def __init__(self, config, on, i):
        super().__init__()
        self.node = Node(config, 2 if i == 1 else 3, on.width) if i % 2 == 1 else None
        self.first = i == 0

    def update(self, stream, f):
        x, before = stream.x, stream.carried
        h = x + f(x)
        if self.node is None:
            return Stream(h, () if self.first else (x,))
        return Stream(self.node(x, h, *before))


CONNECTIONS["Tree"] = Design(Tree, frame=lambda config: Frame(final_norm=False))
CONNECTIONS["Iterative"] = Design(
    Iterative, ends=lambda config, on: LastNode(), frame=lambda config: Frame(final_norm=False)
)
