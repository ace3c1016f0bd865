class Mudd(nn.Module):
    """A = r + MHA(LN_q(q), LN_k(k), LN_v(v))    X_{l+1} = A + MLP(LN_2(A))
    w = GELU(RMS(X_{l+1}) W_1) W_2 + a        W_1 [D, K],  W_2 [K, C (l + 2)],  a [C, l + 2]
    q', k', v', r' = Σ_j w_c[j] X_j           j = 0, …, l + 1,  c = q, k, v, r

    The stream's x is r. The stream carries the sources X_j, and at the end of a layer also q, k and v, if they differ
    from r. The last layer has only r'.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.layer = on.layer(i)
        own, is_three = config["own_norms"], on.is_attention(i) and self.layer > 0
        self.norm = norm_of(config["norm"], on.width) if own and not is_three else nn.Identity()
        self.norms = QkvNorms(config["norm"], on.width) if own and is_three else None
        self.mixtures = MuddMixtures(config, on, self.layer) if (i + 1) % on.per_layer == 0 else None

    def update(self, stream, f):
        r, sources, qkv = stream.x, stream.carried[: self.layer + 1], list(stream.carried[self.layer + 1 :])
        if self.norms is not None:
            x = r + f(self.norms(qkv or [r] * 3))
        else:
            x = r + f(qkv or self.norm(r))
        if self.mixtures is None:
            return Stream(x, sources)
        return self.mixtures(x, sources)


class MuddMixtures(nn.Module):
    """The mixtures after layer l. With `pre_post`, they are X_{l+1} + RMS'(Σ_j w_c[j] RMS_j(X_j))."""

    def __init__(self, config, on, l):
        super().__init__()
        kind, letters = variant(config["ways"])
        is_last, pre_post = l + 1 == on.layers, config["pre_post"]
        # The inputs that have a mixture, in the order of the mixtures.
        self.ways = "r" if kind == "One" or is_last else "".join(c for c in "qkvr" if c in letters)
        # Whether q, k or v of the next layer can differ from r.
        self.apart = kind == "Each" and not is_last
        self.generator = MuddGenerator(config, on, l, len(self.ways)) if config["dynamic"] else None
        self.mixing = parameter(len(self.ways), l + 2)
        self.norm_source = mudd_norm(config, on, pre_post)
        behind = [mudd_norm(config, on, pre_post == "Paper" or way == "r") for way in self.ways]
        self.norms_behind = nn.ModuleList(behind) if pre_post else None

    def forward(self, x, sources):
        """The stream of the next layer, with X_{l+1} among the sources."""
        sources = (*sources, self.norm_source(x))
        w = self.mixing
        if self.generator is not None:
            w = w + self.generator(x).unflatten(-1, w.shape)

        def mixture(way):
            if way not in self.ways:
                return x
            c = self.ways.index(way)
            mixed = sum(w_j[..., None] * x_j for w_j, x_j in zip(w[..., c, :].unbind(-1), sources))
            return mixed if self.norms_behind is None else x + self.norms_behind[c](mixed)

        qkv = [mixture(way) for way in "qkv"] if self.apart else []
        return Stream(mixture("r"), (*sources, *qkv))


class MuddGenerator(nn.Module):
    """GELU(RMS(X) W_1) W_2."""

    def __init__(self, config, on, l, ways):
        super().__init__()
        weights, multiple = ways * (l + 2), config["hidden_multiple"]
        k = 4 * weights if config["wide_last"] and l + 1 == on.layers else weights
        k = (k // multiple + 1) * multiple if multiple else k
        scale = "Scale" if config["pre_post"] else "None"
        self.norm = Norm(on.width, config["norm_eps"], scale, centred=False)
        self.w1, self.w2 = parameter(on.width, k), parameter(k, weights)
        self.activation = ACTIVATIONS[config["activation"]]

    def forward(self, x):
        return self.activation(self.norm(x) @ self.w1) @ self.w2


def mudd_norm(config, on, here):
    """An RMS norm around the mixtures, or nothing."""
    return Norm(on.width, config["norm_eps"], centred=False) if here else nn.Identity()


class MuddFirst(Ends):
    """The ends of a stream that carries X_0, or RMS_0(X_0) with `pre_post`."""

    def __init__(self, config, on):
        super().__init__()
        self.norm = mudd_norm(config, on, config["pre_post"])

    def open(self, x):
        return Stream(x, (self.norm(x),))


CONNECTIONS["Mudd"] = Design(Mudd, MuddFirst, lambda config: Frame(pre_norm=not config["own_norms"]))
