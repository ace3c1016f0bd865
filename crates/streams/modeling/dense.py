class Dense(nn.Module):
    """X_0 = x_0,  X_b = layer_b(Y_{b-1}),  Y_b = Σ_j α_b[j] X_j  over j = b, b − k, … ≥ 0  if p divides b, else X_b

    The stream carries X_0, …, X_{b-1}.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.b, self.k = i + 1, config["dilation"]
        self.alpha = parameter(self.b // self.k + 1) if self.b % config["period"] == 0 else None

    def update(self, stream, f):
        x = stream.x + f(stream.x)
        all_x = (*stream.carried, x)
        if self.alpha is None:
            return Stream(x, all_x)
        chosen = all_x[self.b % self.k :: self.k]
        return Stream(sum(alpha * x for alpha, x in zip(self.alpha, chosen)), all_x)


CONNECTIONS["Dense"] = Design(Dense, ends=lambda config, on: KeepFirst())
