class Mhc(nn.Module):
    """r = RMSNorm(vec H)
    z_pre = s_0 r P_pre + b_pre [n]    z_post = s_1 r P_post + b_post [n]    z_res = s_2 mat(r P_res) + b_res [n, n]
    pre = σ(z_pre)    post = 2 σ(z_post)    res = Sinkhorn(exp(z_res)): columns, then rows, t times
    H' = res H + postᵀ f(pre H)

    iHC:       res = I, without z_res
    mHC-lite:  res = Σ_k p_k Π_k,  p = softmax(z_res),  Π_k permutations of n streams
    KromHC:    res = U_1 ⊗ … ⊗ U_K,  U_j as res of mHC-lite

    In the form `Code`, ε is added to pre, and res is transposed. With `transposed`, resᵀ H replaces res H.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.n, self.code = config["n"], config["form"] == "Code"
        self.rounds, self.eps = config["sinkhorn"], config["eps"]
        self.transposed = config.get("transposed", False)
        kind, given = variant(config.get("residual", "Sinkhorn"))
        # The permutations of each factor of res: no factor for `Identity`, and `None` for `Sinkhorn`.
        self.factors = {
            "Sinkhorn": lambda: None,
            "Identity": lambda: [],
            "Permutations": lambda: [permutations(self.n)],
            "Chosen": lambda: [given],
            "Kronecker": lambda: [permutations(n) for n in given],
        }[kind]()
        columns = self.n**2 if self.factors is None else sum(len(orders) for orders in self.factors)
        self.sizes = [size for size in (self.n, self.n, columns) if size > 0]
        self.read = MhcRead(config, on.width, sum(self.sizes))
        self.scale = parameter(len(self.sizes))

    def update(self, stream, f):
        h, sizes = streams(stream.x, self.n), self.sizes
        s = torch.cat([s.expand(size) for s, size in zip(self.scale, sizes)])
        z_pre, z_post, *z_res = self.read(stream.x, s).split(sizes, -1)
        pre, post = z_pre.sigmoid(), 2 * z_post.sigmoid()
        if self.code:
            pre = pre + self.eps
        fx = f((pre[..., None] * h).sum(2))
        h = self.mixed(h, *z_res) + post[..., None] * fx.unsqueeze(2)
        return Stream(h.flatten(2), stream.carried)

    def mixed(self, h, z_res=None):
        """res H, or resᵀ H with `transposed`."""
        if z_res is None:
            return h
        if self.factors is None:
            res = self.doubly_stochastic(z_res.unflatten(-1, (self.n, self.n)))
        else:
            parts = z_res.split([len(orders) for orders in self.factors], -1)
            res, *others = (convex(z, orders) for z, orders in zip(parts, self.factors))
            for u in others:
                res = kronecker(res, u)
        return (res.mT if self.transposed else res) @ h

    def doubly_stochastic(self, z):
        """Sinkhorn(exp(z)). In the form `Code`, Sinkhorn begins with rows, and its first step is a softmax."""
        if self.code:
            return sinkhorn(z.softmax(-1) + self.eps, 2 * self.rounds - 1, self.eps).mT
        # Subtracting the maximum divides all entries by one factor, which does not change the result.
        return sinkhorn((z - z.amax((-2, -1), keepdim=True)).clamp(min=-80).exp(), 2 * self.rounds, 0.0)


def sinkhorn(m, steps, eps):
    """Divides m by the sums of its columns, then of its rows, and so on."""
    for step in range(steps):
        m = m / (m.sum(-2 if step % 2 == 0 else -1, keepdim=True) + eps)
    return m


def permutations(n):
    """All permutations of n streams in lexicographic order."""
    return list(itertools.permutations(range(n)))


def convex(z, orders):
    """Σ_k softmax(z)_k Π_k. Row s of Π_k has its 1 in column orders[k][s]."""
    matrices = torch.eye(len(orders[0]), dtype=z.dtype, device=z.device)[torch.tensor(orders, device=z.device)]
    return torch.einsum("btk,krc->btrc", z.softmax(-1), matrices)


def kronecker(a, b):
    """a ⊗ b, [batch, time, n · m, n · m] for a [batch, time, n, n] and b [batch, time, m, m]."""
    return torch.einsum("btij,btkl->btikjl", a, b).flatten(4).flatten(2, 3)


class MhcRead(nn.Module):
    """s ⊙ (r P) + b. In the form `Code`, the norm has no scale."""

    def __init__(self, config, width, columns):
        super().__init__()
        width = config["n"] * width
        scale = "Scale" if config["form"] == "Paper" else "None"
        self.norm = Norm(width, config["norm_eps"], scale, centred=False)
        self.phi, self.base = parameter(width, columns), parameter(columns)

    def forward(self, x, s):
        return s * (self.norm(x) @ self.phi) + self.base


class MhcEnds(Copies):
    """Opens n copies of x_0, and closes with the sum or mean of the streams.

    In the form `Code`, the end is Σ_j w_j H_j, w = σ(s r P + b) + ε.
    """

    def __init__(self, config, on):
        super().__init__(config["n"], on)
        self.head = MhcHead(config, on.width) if config["form"] == "Code" else None

    def close(self, stream):
        if self.head is None:
            return super().close(stream)
        return (self.head(stream.x)[..., None] * streams(stream.x, self.n)).sum(2)


class MhcHead(nn.Module):
    """σ(s r P + b) + ε."""

    def __init__(self, config, width):
        super().__init__()
        self.read, self.scale, self.eps = MhcRead(config, width, config["n"]), parameter(1), config["eps"]

    def forward(self, x):
        return self.read(x, self.scale).sigmoid() + self.eps


CONNECTIONS["Mhc"] = Design(Mhc, MhcEnds)
