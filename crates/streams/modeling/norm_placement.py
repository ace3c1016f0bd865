class NormPlacement(nn.Module):
    """Peri:        x_{i+1} = x_i + N(F(N(x_i)))
    PostBranch:  x_{i+1} = x_i + N(F(x_i))
    Lns:         x_{i+1} = x_i + F(N(x_i) / √(l + 1))
    Mix:         x_{i+1} = N(x_i + F(x_i)) in the first P layers, then x_i + F(N(x_i))

    The layer is l, counted from 0. P is `post_layers`, or a quarter of the layers, rounded down.
    """

    def __init__(self, config, on, i):
        super().__init__()
        kind, fields = variant(config["placement"])
        layer, post_layers = on.layer(i), fields.get("post_layers")
        post_layers = on.layers // 4 if post_layers is None else post_layers
        self.of_sum = kind == "Mix" and layer < post_layers
        norm = lambda here: norm_of(config["norm"], on.width) if here else nn.Identity()
        before = norm(kind != "PostBranch" and not self.of_sum)
        behind = norm(kind in ("Peri", "PostBranch") or self.of_sum)
        self.norms = nn.ModuleDict({"before": before, "behind": behind})
        self.scale = (layer + 1) ** -0.5 if kind == "Lns" else 1.0

    def update(self, stream, f):
        x, before, behind = stream.x, self.norms["before"], self.norms["behind"]
        y = f(before(x) * self.scale)
        return Stream(behind(x + y) if self.of_sum else x + behind(y), stream.carried)


class NormedStart(Ends):
    """A stream that begins with N(x_0), or with x_0."""

    def __init__(self, config, on):
        super().__init__()
        self.norm = norm_of(config["norm"], on.width) if config["embedding_norm"] else nn.Identity()

    def open(self, x):
        return Stream(self.norm(x))


CONNECTIONS["NormPlacement"] = Design(NormPlacement, NormedStart, lambda config: Frame(pre_norm=False))
