class DeepNorm(nn.Module):
    """x_{i+1} = LN(α x_i + F(x_i)),  α = (2L)^(1/4)"""

    def __init__(self, config, on, i):
        super().__init__()
        self.norm = Norm(on.width, config["norm_eps"], config["norm"])
        self.alpha = on.count**0.25 if config["alpha"] is None else config["alpha"]

    def update(self, stream, f):
        x = stream.x
        return Stream(self.norm(self.alpha * x + f(x)), stream.carried)


CONNECTIONS["DeepNorm"] = Design(DeepNorm, frame=lambda config: Frame(pre_norm=False, final_norm=False))
