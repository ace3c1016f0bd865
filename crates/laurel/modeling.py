class Laurel(nn.Module):
    """x_{i+1} = α f(x_i) + β (x_i + correction) (eqs. 2-6). The stream carries x_{i-1}, …, x_{i-k+1}."""

    ROWS = {"One": 0, "Sigmoid": 1}

    def __init__(self, config, on, i):
        super().__init__()
        width = on.width
        self.weights = config["weights"]
        self.kind, sizes = variant(config["augmentation"])
        self.k, rank = sizes.get("k", 1), sizes.get("rank")
        rows = self.ROWS.get(self.weights, 2)
        products = self.k if self.kind == "LowRankPerStream" else 1
        self.mixing = parameter(rows, width if config["per_dimension"] else 1) if rows else None
        self.a = parameter(products, width, rank) if rank else None
        self.b = parameter(products, rank, width) if rank else None
        self.gamma = None if self.kind in ("Identity", "LowRank") else parameter(self.k)
        self.norm = Norm(width, 1e-6, centred=False) if config["norm"] else None

    def alpha_beta(self):
        logits = self.mixing
        if self.weights == "Sigmoid":
            alpha = logits[0].sigmoid()
            return alpha, 1 - alpha
        if self.weights == "TwoSigmoids":
            return logits.sigmoid()
        if self.weights == "Raw":
            return logits
        return logits.softmax(0) * (2 if self.weights == "DoubleSoftmax" else 1)

    def low_rank(self, x, j):
        return x @ self.a[j] @ self.b[j]

    def correction(self, stream):
        if self.kind == "LowRank":
            return self.low_rank(stream.x, 0)
        terms = [self.gamma[j] * x for j, x in enumerate([stream.x, *stream.carried])]
        if self.kind == "LowRankPerStream":
            return sum(self.low_rank(x, j) for j, x in enumerate(terms))
        return sum(terms) if self.kind == "PreviousActivations" else self.low_rank(sum(terms), 0)

    def update(self, stream, f):
        x, fx = stream.x, f(stream.x)
        g = x
        if self.kind != "Identity":
            correction = self.correction(stream)
            g = x + (correction if self.norm is None else self.norm(correction))
        carried = (x, *stream.carried)[: self.k - 1]
        if self.mixing is None:
            return Stream(fx + g, carried)
        alpha, beta = self.alpha_beta()
        return Stream(alpha * fx + beta * g, carried)


CONNECTIONS["Laurel"] = Design(Laurel)
