class Delta(nn.Module):
    """X [D, m] replaces x.

    c = LN(a),  a = compress(X)                k = F(c) / √(|F(c)|² + ε²)
    X' = X + β k (v − kᵀ X)                    β = 2 σ(c · w + b)
    paper:  v = c W                            code:  v = 4 σ(a W + b_v)                v [m]

    X_0 consists of m copies of x_0, or of m causal convolutions of x_0. compress(X) is X if m = 1. If the residuals of
    a layer share a compress, the stream carries its weights. One more compress ends the stream.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.m, self.eps, self.code = config["channels"], config["k_eps"], config["form"] == "Code"
        self.over_time = config["compress"] == "Time"
        self.norm = norm_of(config["norm"], on.width)
        self.beta, self.value = Linear(on.width, 1, True), Linear(on.width, self.m, self.code)
        expands = config["embedding_conv"] and i == 0
        self.expand = parameter(self.m * on.width, config["kernel"]) if expands else None
        owns = lambda i: not config["per_layer"] or i % on.per_layer == 0
        is_last = i + 1 == on.count
        self.compress = DeltaCompress(config, on) if self.m > 1 and owns(i) else None
        self.last = DeltaCompress(config, on) if self.m > 1 and is_last else None
        self.shared = self.m > 1 and not owns(i + 1)

    def update(self, stream, f):
        x = stream.x if self.expand is None else causal_sum(stream.x, self.expand)
        weights = stream.carried if self.compress is None else self.compress.weights()
        a = self.compressed(x, *weights)
        c = self.norm(a)
        k = f(c)
        k = k / torch.sqrt((k * k).sum(-1, keepdim=True) + self.eps**2)
        beta = 2 * self.beta(c).sigmoid()
        v = 4 * self.value(a).sigmoid() if self.code else self.value(c)
        x, k = streams(x, self.m), k.unsqueeze(2)
        x = (x + k * (beta * (v - (x * k).sum(-1))).unsqueeze(-1)).flatten(2)
        x = x if self.last is None else self.compressed(x, *self.last.weights())
        return Stream(x, tuple(weights) if self.shared else ())

    def compressed(self, x, conv=None, read=None):
        """conv(X) r, or X if m = 1. conv is over the m channels of a position, or causal over positions."""
        if conv is None:
            return x
        if self.over_time:
            y = streams(causal_sum(x, conv), self.m)
        else:
            m = self.m
            padded = F.pad(streams(x, m), (0, 0, (m - 1) // 2, m // 2))
            y = sum(padded[:, :, j : j + m] * conv[:, j] for j in range(m))
        return (read[:, None] * y).sum(2)


class DeltaCompress(nn.Module):
    """The weights of compress: the convolution and r."""

    def __init__(self, config, on):
        super().__init__()
        m, d = config["channels"], on.width
        self.conv = parameter(m * d, config["kernel"]) if config["compress"] == "Time" else parameter(d, m)
        self.read = parameter(m)

    def weights(self):
        return self.conv, self.read


class DeltaChannels(Ends):
    """Opens m copies of x_0. The last residual reduces X to x_L."""

    def __init__(self, config, on):
        super().__init__()
        self.m = config["channels"]

    def open(self, x):
        return Stream(x.repeat(1, 1, self.m))


CONNECTIONS["Delta"] = Design(Delta, DeltaChannels, frame=lambda config: Frame(pre_norm=False))
