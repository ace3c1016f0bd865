class Highway(nn.Module):
    """x_{i+1} = (1 − T) x_i + T f(x_i),  T = σ(x_i W + b)"""

    def __init__(self, config, on, i):
        super().__init__()
        self.gate = Linear(on.width, on.width, True)

    def update(self, stream, f):
        x = stream.x
        t = self.gate(x).sigmoid()
        return Stream((1 - t) * x + t * f(x), stream.carried)


CONNECTIONS["Highway"] = Design(Highway)
