class Siamese(nn.Module):
    """paper:  b = F(N(x + N_y(y)))    x' = N_x(x + b / c)    y' = y + b        end  x + N_y(y)
    code:   z = N_x(x)    b = F(N(z + N_y(y)))    x' = z + b / c    y' = y + b    end  N(N_x(x) + N_y(y))

    The stream carries y. The N that F reads is the identity without `input_norm`. With `depth_scale`, c is √(l + 1) in
    layer l, and √(2(l + 1)) in the code; otherwise, c is 1. The last N is the final norm of the model.
    """

    def __init__(self, config, on, i):
        super().__init__()
        norm = lambda: norm_of(config["norm"], on.width)
        self.norm_x, self.norm_y = norm(), norm()
        self.norm = norm() if config["input_norm"] else nn.Identity()
        self.code = config["form"] == "Code"
        self.c = math.sqrt((2 if self.code else 1) * (on.layer(i) + 1)) if config["depth_scale"] else 1.0

    def update(self, stream, f):
        x, (y,) = stream.x, stream.carried
        z = self.norm_x(x) if self.code else x
        b = f(self.norm(z + self.norm_y(y)))
        x = z + b / self.c
        return Stream(x if self.code else self.norm_x(x), (y + b,))


class SiameseEnds(KeepFirst):
    """Both streams begin as x_0, and the end is N_x(x) + N_y(y).

    In the paper's form, N_x is the identity at the end.
    """

    def __init__(self, config, on):
        super().__init__()
        norm = lambda: norm_of(config["norm"], on.width)
        self.norm_x = norm() if config["form"] == "Code" else nn.Identity()
        self.norm_y = norm()

    def close(self, stream):
        x, (y,) = stream.x, stream.carried
        return self.norm_x(x) + self.norm_y(y)


CONNECTIONS["Siamese"] = Design(
    Siamese, SiameseEnds, lambda config: Frame(pre_norm=False, final_norm=config["form"] == "Code")
)
