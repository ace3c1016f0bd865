class Scaled(nn.Module):
    """x_{i+1} = x_i + a f(x_i), with a [1] or [D]."""

    def __init__(self, features):
        super().__init__()
        self.a = parameter(features)

    def update(self, stream, f):
        return Stream(stream.x + self.a * f(stream.x), stream.carried)


class ReZero(nn.Module):
    """x_{i+1} = x_i + a f(x_i). With `per_layer`, the first residual of a layer has a, and the stream carries it."""

    def __init__(self, config, on, i):
        super().__init__()
        owns = lambda i: not config["per_layer"] or i % on.per_layer == 0
        self.a = parameter(1) if owns(i) else None
        self.shared = not owns(i + 1)

    def update(self, stream, f):
        a = stream.carried[0] if self.a is None else self.a
        return Stream(stream.x + a * f(stream.x), (a,) if self.shared else ())


CONNECTIONS["SkipInit"] = Design(lambda config, on, i: Scaled(1))
CONNECTIONS["LayerScale"] = Design(lambda config, on, i: Scaled(on.width))
CONNECTIONS["ReZero"] = Design(ReZero, frame=lambda config: Frame(pre_norm=False))
