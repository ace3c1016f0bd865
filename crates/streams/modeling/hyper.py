class Hyper(nn.Module):
    """h_0 = A_mᵀ H    R = A_rᵀ H    H' = R + Bᵀ f(h_0)       A = [A_m | A_r] [n, n + 1],  B [n]
    dynamic:  A + s_α tanh(LN(H) W_α),  B + s_β tanh(LN(H) W_β)       row j from stream j
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.n = config["n"]
        self.mixing, self.beta = parameter(self.n, self.n + 1), parameter(self.n)
        norm = lambda: Norm(on.width, config["norm_eps"], config["norm"])
        self.dynamic = Dynamic(norm(), on.width, self.n + 1) if config["dynamic"] else None

    def update(self, stream, f):
        h = streams(stream.x, self.n)
        a, b = self.mixing, self.beta[:, None]
        if self.dynamic is not None:
            of_a, of_b = self.dynamic(h)
            a, b = a + of_a, b + of_b
        a_m, a_r = a[..., :1], a[..., 1:]
        h_0 = (a_m.mT @ h).squeeze(2)
        h = a_r.mT @ h + b * f(h_0).unsqueeze(2)
        return Stream(h.flatten(2), stream.carried)


CONNECTIONS["Hyper"] = Design(Hyper, ends=lambda config, on: Copies(config["n"], on))
