class ValueGated(nn.Module):
    """v_l + g v_0  in place of  v_l,   g = gate(u W)

    g is one number per position and head, and u the normalised input of the layer. v_0 are the values of the first
    layer, which the stream carries.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.is_attention, self.function = on.is_attention(i), GATES[config["gate"]]
        is_gated = self.is_attention and i > 0
        self.gate = Linear(on.width, on.heads, config["bias"]) if is_gated else None

    def update(self, stream, f):
        if not self.is_attention:
            return Stream(stream.x + f(stream.x), stream.carried)
        return with_first_values(stream, f, lambda v, first, u: v + per_head(self.function(self.gate(u))) * first)


GATES = {
    "Relu": F.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Identity": lambda z: z,
    "Softmax": lambda z: z.softmax(-1) * z.shape[-1],
    "SoftmaxSigmoid": lambda z: z.softmax(-1) * z.sigmoid() * z.shape[-1],
}

CONNECTIONS["ValueGated"] = Design(ValueGated)
