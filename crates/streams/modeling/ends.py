class KeepFirst(Ends):
    """The ends of a stream that carries x_0."""

    def open(self, x):
        return Stream(x, (x,))


class Copies(Ends):
    """Opens n copies of x_0, side by side, and sums them at the end. If no norm follows, it takes their mean."""

    def __init__(self, n, on):
        super().__init__()
        self.n, self.mean = n, not on.into_norm

    def open(self, x):
        return Stream(x.repeat(1, 1, self.n))

    def close(self, stream):
        h = streams(stream.x, self.n)
        return h.mean(2) if self.mean else h.sum(2)


def streams(x, n):
    """Views n streams side by side, [batch, time, n · D], as H [batch, time, n, D]."""
    return x.unflatten(-1, (n, -1))
