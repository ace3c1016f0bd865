class Frac(nn.Module):
    """g = Yᵀ H    R = Aᵀ H    H' = R + B ⊙ split(f(join(g)))       [Y | A] [m, 2m],  B [m]
    dynamic:  [Y | A] + s_α tanh(N(H) W_α),  B + s_β tanh(N(H) W_β)       row j from fraction j

    H is x, cut into m fractions.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.m, width = config["m"], on.width // config["m"]
        self.mixing, self.beta = parameter(self.m, 2 * self.m), parameter(self.m)
        layer = config["norm"] == "Layer"
        norm = lambda: Norm(width, config["norm_eps"], "ScaleAndShift" if layer else "Scale", centred=layer)
        self.dynamic = Dynamic(norm(), width, 2 * self.m) if config["dynamic"] else None

    def update(self, stream, f):
        h = streams(stream.x, self.m)
        y_and_a, b = self.mixing, self.beta[:, None]
        if self.dynamic is not None:
            of_a, of_b = self.dynamic(h)
            y_and_a, b = y_and_a + of_a, b + of_b
        g, r = (y_and_a.mT @ h).chunk(2, 2)
        h = r + b * streams(f(g.flatten(2)), self.m)
        return Stream(h.flatten(2), stream.carried)


CONNECTIONS["Frac"] = Design(Frac)
