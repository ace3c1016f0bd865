class InitialMix(nn.Module):
    """x_{i+1} = layer(r x_i + m x_0)"""

    def __init__(self, config, on, i):
        super().__init__()
        self.r, self.m = parameter(1), parameter(1)

    def update(self, stream, f):
        u = self.mix(stream.x, *stream.carried)
        return Stream(u + f(u), stream.carried)

    def mix(self, x, x_0):
        return self.r * x + self.m * x_0


CONNECTIONS["InitialMix"] = Design(InitialMix, ends=lambda config, on: KeepFirst())
