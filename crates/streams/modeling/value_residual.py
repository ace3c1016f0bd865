class ValueResidual(nn.Module):
    """λ_1 v_0 + λ_2 v_l  in place of  v_l

    v_0 are the values of the first layer, which the stream carries. λ_1 and λ_2 are learned, or ½.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.is_attention = on.is_attention(i)
        learned = config["form"] == "Learnable" and self.is_attention and i > 0
        # `lambda` is a keyword of Python.
        self.register_parameter("lambda", parameter(2) if learned else None)

    def update(self, stream, f):
        if not self.is_attention:
            return Stream(stream.x + f(stream.x), stream.carried)
        learned = getattr(self, "lambda")
        one, two = (0.5, 0.5) if learned is None else learned
        return with_first_values(stream, f, lambda v, first, u: one * first + two * v)


CONNECTIONS["ValueResidual"] = Design(ValueResidual)
