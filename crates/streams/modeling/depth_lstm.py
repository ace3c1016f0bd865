class DepthLstm(nn.Module):
    """The stream carries the cell.

    i, f, o = σ(LN([a; x] W + b))        m = act(LN([a; x] U + b')) V + b''
    cell'   = f ⊙ cell + i ⊙ m           x' = o ⊙ cell'

    a is attention(x). In the form `Code`, a is u + attention(u) with u = LN(x).
    """

    def __init__(self, config, on, i):
        super().__init__()
        width, bias = on.width, config["bias"]
        d_ff = config["d_ff"] or 4 * width
        norm = lambda features: Norm(features, config["norm_eps"], scale_and_shift(bias))
        self.code = config["form"] == "Code"
        self.norm = norm(width) if self.code else nn.Identity()
        self.gates = DepthLstmGates(config, 3, width)
        self.fc, self.norm_hidden, self.proj = Linear(2 * width, d_ff, bias), norm(d_ff), Linear(d_ff, width, bias)
        self.activation = ACTIVATIONS[config["activation"]]

    def update(self, stream, attention):
        x, (cell,) = stream.x, stream.carried
        u = self.norm(x)
        a = u + attention(u) if self.code else attention(x)
        both = torch.cat([a, x], -1)
        i, f, o = (gate.sigmoid() for gate in self.gates(both))
        m = self.proj(self.activation(self.norm_hidden(self.fc(both))))
        cell = f * cell + i * m
        return Stream(o * cell, (cell,))


class DepthLstmCell(nn.Module):
    """An LSTM around each sublayer.

    a is the output of the branch, and m is the tanh of a fourth map, normalised like the gates.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.gates = DepthLstmGates(config, 4, on.width)

    def update(self, stream, branch):
        x, (cell,) = stream.x, stream.carried
        i, f, o, m = self.gates(torch.cat([branch(x), x], -1))
        cell = f.sigmoid() * cell + i.sigmoid() * m.tanh()
        return Stream(o.sigmoid() * cell, (cell,))


class DepthLstmGates(nn.Module):
    """The n gates LN([a; x] W + b). The norm covers the features of one gate, or of all gates."""

    def __init__(self, config, n, width):
        super().__init__()
        self.map = Linear(2 * width, n * width, config["bias"])
        self.norm = Norm(n * width, config["norm_eps"], scale_and_shift(config["bias"]))
        self.n, self.each = n, config["gate_norm"] == "Each"

    def forward(self, both):
        gates = self.map(both)
        if self.each:
            gates = self.norm.scaled(standardised(gates.unflatten(-1, (self.n, -1)), self.norm.eps).flatten(-2))
        else:
            gates = self.norm(gates)
        return gates.chunk(self.n, -1)


class DepthLstmEnds(Ends):
    """The ends of a stream that carries the cell, which is first x_0 or zero."""

    def __init__(self, config, on):
        super().__init__()
        self.zero = config["first_cell"] == "Zero"

    def open(self, x):
        return Stream(x, (torch.zeros_like(x) if self.zero else x,))


CONNECTIONS["DepthLstm"] = Design(
    DepthLstm, DepthLstmEnds, frame=lambda config: Frame(pre_norm=False, feed_forward=False)
)
CONNECTIONS["DepthLstmCell"] = Design(DepthLstmCell, DepthLstmEnds)
