class SelfDependency(nn.Module):
    """x_{i+1} = LN(x_i + f(x_i) + ψ(x_i W_1 + b_1) ⊙ (x_i W_2 + b_2))

    With `norm: Pre`, f has its norm and the sum has none.
    """

    def __init__(self, config, on, i):
        super().__init__()
        width, bias = on.width, config["bias"]
        self.gate, self.value = Linear(width, width, bias), Linear(width, width, bias)
        post = config["norm"] == "Post"
        self.norm = Norm(width, config["norm_eps"], scale_and_shift(bias)) if post else nn.Identity()
        self.psi = {"Tanh": torch.tanh, "Sigmoid": torch.sigmoid}[config["psi"]]

    def update(self, stream, f):
        x = stream.x
        return Stream(self.norm(x + f(x) + self.psi(self.gate(x)) * self.value(x)), stream.carried)


def self_dependency_frame(config):
    pre = config["norm"] == "Pre"
    return Frame(pre_norm=pre, final_norm=pre)


CONNECTIONS["SelfDependency"] = Design(SelfDependency, frame=self_dependency_frame)
