class Speedrun(nn.Module):
    """smear:    x_0[t] + s σ(x_0[t, ..c] w) x_0[t − 1]    in place of  x_0[t], at position t
    layer l:  x ← x + w_k x_{n-k}                       U-net skip
              x ← r x + m x_0                           mixture with x_0
              x ← x + attention(x)                      with value embeddings in some layers
              x ← x + mlp(x)
    backout:  x_L − λ x_{b+1}                           at the end

    Each trick can be omitted. The stream carries x_0, then the rows of tables that several layers read, then the
    outputs that skips read.
    """

    def __init__(self, config, on, i):
        super().__init__()
        layer, layers = on.layer(i), around_layers(on)
        self.is_first, self.is_last = i % on.per_layer == 0, (i + 1) % on.per_layer == 0
        part = lambda name, needed: config[name] if needed else None
        smear, mix = part("smear", i == 0), part("mix", self.is_first)
        has_skips, values = (self.is_first or self.is_last) and any_skips(config), config["values"]
        self.smear = smear and Smear(smear)
        self.mix = mix and InitialMix(mix, layers, layer)
        self.skips = Skips(config, layers, layer) if has_skips else None
        if has_skips and not self.is_first:
            # Only the first sublayer of a layer has w_k.
            self.skips.w = self.skips.w_logit = None
        self.values = Plain() if values is None else ValueEmbedding(values, on, i)
        self.before_kept = 1 + kept_rows(config, on, layer if self.is_first else layer + 1)

    def update(self, stream, f):
        x, x_0, rows = stream.x, stream.carried[0], stream.carried[1 : self.before_kept]
        kept = stream.carried[self.before_kept :]
        if self.smear is not None:
            x = x_0 = self.smear(x)
        if self.skips is not None and self.is_first:
            x, kept = self.skips.before(x, kept)
        if self.mix is not None:
            x = self.mix.mix(x, x_0)
        x, rows, _ = self.values.update(Stream(x, rows, stream.ids), f)
        if self.skips is not None and self.is_last:
            kept = self.skips.after(x, kept)
        return Stream(x, (x_0, *rows, *kept), stream.ids)


class Smear(nn.Module):
    """z_t + s σ(z_t[..c] w) z_{t−1}, and z_0 at the first position."""

    def __init__(self, config):
        super().__init__()
        self.w, self.s = parameter(config["channels"]), parameter(1)

    def forward(self, z):
        before = torch.cat([torch.zeros_like(z[:, :1]), z[:, :-1]], 1)
        gate = (z[..., : len(self.w)] @ self.w).sigmoid()
        return z + self.s * gate.unsqueeze(-1) * before


def any_skips(config):
    return config["unet"] is not None or config["backout"] is not None


def around_layers(on):
    """The layers of the stream, as sites of one connection each."""
    return on._replace(count=on.layers, per_layer=1, around_layers=True)


def kept_rows(config, on, layer):
    """The number of tables whose rows the stream carries before a layer."""
    tables = [] if config["values"] is None else value_tables(config["values"], on)
    return len({t for t in tables[:layer] if t is not None and tables.count(t) > 1})


class SpeedrunEnds(KeepFirst):
    """The end x_L − λ x_{b+1} with a backout, else x_L."""

    def __init__(self, config, on):
        super().__init__()
        self.backout = BackoutEnd(config, around_layers(on)) if any_skips(config) else None
        self.before_kept = 1 + kept_rows(config, on, on.layers)

    def close(self, stream):
        if self.backout is None:
            return stream.x
        return self.backout.close(stream._replace(carried=stream.carried[self.before_kept :]))


CONNECTIONS["Speedrun"] = Design(Speedrun, SpeedrunEnds)
