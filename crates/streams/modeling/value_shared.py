class ValueShared(nn.Module):
    """v_0  in place of  v_l

    v_0 are the values of the first layer, which the stream carries. No other layer has a value projection.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.is_attention = on.is_attention(i)

    def update(self, stream, f):
        if not self.is_attention:
            return Stream(stream.x + f(stream.x), stream.carried)
        return with_first_values(stream, f, lambda v, first, u: first)


CONNECTIONS["ValueShared"] = Design(ValueShared, frame=lambda config: Frame(own_values=False))
