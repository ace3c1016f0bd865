def norm_of(design, width):
    """Builds the norm of a config: `Layer` or `Rms`."""
    kind, fields = variant(design)
    if kind == "Layer":
        return Norm(width, fields["eps"], fields["params"])
    return Norm(width, fields["eps"], fields["scale"], centred=False)


class QkvNorms(nn.Module):
    """A norm for each of q, k and v, or for each of their inputs."""

    def __init__(self, design, width):
        super().__init__()
        self.q, self.k, self.v = (norm_of(design, width) for _ in range(3))

    def forward(self, qkv):
        return [norm(x) for norm, x in zip((self.q, self.k, self.v), qkv)]
