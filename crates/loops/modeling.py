class Loops(nn.Module):
    """The prelude, the core `loops` times, and the coda:

    e = prelude(x),  s_r = core(inject(s_{r-1} + timestep_r, e)),  y = coda(s_loops) or coda(norm(s_loops))
    """

    size = None

    def __init__(self, config, layers, ends, width):
        super().__init__()
        self.layers, self.ends, self.config = nn.ModuleList(layers), nn.ModuleList(ends), config
        kind, times = variant(config["times"])
        mean = times if kind == "Fixed" else times["mean"]
        self.loops = config["evaluated"] or mean
        self.adapter = parameter(2 * width, width) if config["inject"] == "Linear" else None
        self.timestep = parameter(mean, width) if config["timestep"] == "Learned" else None

    def forward(self, x, ids, lengths, norm):
        prelude, core, coda = self.stacks()
        e = through(*prelude, x, ids) if prelude else x
        s = self.start(e)
        for stack in core:
            for r in range(self.loops):
                s = through(*stack, self.inject(self.timed(s, r), e), ids)
        s = norm(s) if self.config["norm"] else s
        return through(*coda, s, ids) if coda else s

    def stacks(self):
        """The ends and layers of the prelude, of each stack of the core, and of the coda."""
        layers = iter(self.layers)
        sizes = loop_sizes(self.config, len(self.layers))
        stacks = [(ends, [next(layers) for _ in range(size)]) for ends, size in zip(self.ends, sizes)]
        prelude = stacks.pop(0) if self.config["prelude"] else None
        coda = stacks.pop() if self.config["coda"] else None
        return prelude, stacks, coda

    def start(self, e):
        """s_0: e, 0 or a random state that depends only on the position."""
        kind, std = variant(self.config["start"])
        if kind == "Embedding":
            return e
        if kind == "Zero":
            return torch.zeros_like(e)
        return (std * loop_noise(*e.shape[1:])).to(e.device, e.dtype).expand_as(e)

    def timed(self, s, r):
        """s with the signal of loop r, counted from 0."""
        if self.timestep is not None:
            return s + self.timestep[r]
        if self.config["timestep"] == "Sinusoid":
            return s + loop_signal(r + 1, *s.shape[1:]).to(s.device, s.dtype)
        return s

    def inject(self, s, e):
        if self.adapter is not None:
            return torch.cat([s, e], -1) @ self.adapter
        return s + e if self.config["inject"] == "Add" else s


def loop_sizes(config, n_layer):
    """The number of layers on each stream: the prelude, each stack of the core, and the coda."""
    prelude, coda = config["prelude"], config["coda"]
    core = n_layer - prelude - coda
    sizes = [prelude, *([core] if config["order"] == "Cycle" else [1] * core), coda]
    return [size for size in sizes if size]


def loop_signal(r, time, width):
    """sin(t ω) + sin(r ω) and cos(t ω) + cos(r ω) in turn, ω = 10000^(−2c / width), [time, width]."""
    j = torch.arange(width, dtype=torch.float64)
    f, phase = 10_000.0 ** (-(j - j % 2) / width), j % 2 * (math.pi / 2)
    t = torch.arange(time, dtype=torch.float64)[:, None]
    return torch.sin(t * f + phase) + torch.sin(r * f + phase)


def loop_noise(time, width):
    """Numbers from N(0, 1), [time, width], by SplitMix64 and the Box-Muller transform."""
    gamma, shift = 0x9E3779B97F4A7C15 - 2**64, lambda z, n: (z >> n) & (2 ** (64 - n) - 1)

    def mix(z):
        z = (z ^ shift(z, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
        z = (z ^ shift(z, 27)) * (0x94D049BB133111EB - 2**64)
        return z ^ shift(z, 31)

    seeds = mix(torch.arange(time)[:, None] + gamma)
    numbers = mix(seeds + torch.arange(1, 2 * width + 1) * gamma)
    u, v = ((shift(numbers, 11) + 1).double() / 2**53).unflatten(1, (width, 2)).unbind(2)
    return torch.sqrt(-2 * u.log()) * torch.cos(2 * math.pi * v)
