class Skips(nn.Module):
    """U-net:    x_{n+k+1} = layer_{n+k}(x_{n+k} + w_k x_{n-k}),  k = 0 … n − 1,  n = L/2
    backout:  x_L − λ x_{b+1}  at the end

    The stream carries x_{b+1} (for the backout, after layer b), then the outputs that later layers read. w_k is a
    parameter, or the sigmoid of one.
    """

    def __init__(self, config, on, i):
        super().__init__()
        weight, second_half = config["unet"], i >= on.count // 2
        self.w = parameter(1) if second_half and weight == "Raw" else None
        self.w_logit = parameter(1) if second_half and weight == "Sigmoid" else None
        self.keeps = weight is not None and not second_half
        self.is_backout = i == backout_layer(config, on)

    def update(self, stream, f):
        x, kept = self.before(stream.x, stream.carried)
        x = x + f(x)
        return Stream(x, self.after(x, kept))

    def before(self, x, kept):
        """The layer's input, and the kept outputs that later layers read."""
        w = self.w if self.w_logit is None else self.w_logit.sigmoid()
        return (x, kept) if w is None else (x + w * kept[-1], kept[:-1])

    def after(self, x, kept):
        """Keeps x, the layer's output, if a later layer or the backout reads it."""
        kept = (*kept, x) if self.keeps else kept
        return (x, *kept) if self.is_backout else kept


def backout_layer(config, on):
    """b, or `None` without a backout."""
    if config["backout"] is None:
        return None
    kind, b = variant(config["backout"])
    return b if kind == "Layer" else on.count // 2


class BackoutEnd(Ends):
    """x_L − λ x_{b+1}"""

    def __init__(self, config, on):
        super().__init__()
        # `lambda` is a keyword of Python.
        self.register_parameter("lambda", None if config["backout"] is None else parameter(1))

    def close(self, stream):
        factor = getattr(self, "lambda")
        return stream.x if factor is None else stream.x - factor * stream.carried[0]


CONNECTIONS["Skips"] = Design(Skips, BackoutEnd)
