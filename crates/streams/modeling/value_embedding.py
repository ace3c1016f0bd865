class ValueEmbedding(nn.Module):
    """v + r σ(c W) e  in place of  v,   c = first channels of u, or of u and of e
    a v + b e       in place of  v

    e = table[id] in layers with a table, u is the normalised input of the layer, and r the range of the gate. σ(c W) is
    one number per position and head. In the second form, layers without a table use a · v. The stream carries e of each
    table that several layers read.
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.is_attention, self.heads = on.is_attention(i), on.heads
        tables = value_tables(config, on)
        number = tables[on.layer(i)] if self.is_attention else None
        is_first = number is not None and number not in tables[: on.layer(i)]
        self.table = parameter(on.vocab_size, on.heads * on.d) if is_first else None
        # The index of e among the carried tensors.
        shared = [t for t in range(len(tables)) if tables.count(t) > 1]
        self.place = shared.index(number) if number in shared else None
        kind, fields = variant(config["gate"])
        self.both, self.count, self.range = kind == "Both", fields.get("count"), fields.get("range")
        is_gated, is_weighted = number is not None and kind != "Lambda", self.is_attention and kind == "Lambda"
        self.gate = parameter(self.count * (2 if self.both else 1), on.heads) if is_gated else None
        # `lambda` is a keyword of Python.
        self.register_parameter("lambda", parameter(1 if number is None else 2) if is_weighted else None)

    def update(self, stream, f):
        x = stream.x
        if not self.is_attention:
            return stream._replace(x=x + f(x))
        e = self.rows(stream)
        change = lambda heads, u: (*heads[:2], self.changed(heads[2], e, u[2]))
        keeps = self.table is not None and self.place is not None
        return Stream(x + f(x, change), (*stream.carried, e) if keeps else stream.carried, stream.ids)

    def rows(self, stream):
        """e [batch, time, heads · d], or `None` in a layer without a table."""
        if self.table is not None:
            return self.table[stream.ids]
        return None if self.place is None else stream.carried[self.place]

    def changed(self, v, e, u):
        """The values that replace v."""
        factors = getattr(self, "lambda")
        if factors is not None:
            v = factors[0] * v
            return v if e is None else v + factors[1] * split_heads(e, self.heads)
        if self.gate is None:
            return v
        c = u[..., : self.count]
        if self.both:
            c = torch.cat([c, e[..., : self.count]], -1)
        return v + self.range * per_head((c @ self.gate).sigmoid()) * split_heads(e, self.heads)


def value_tables(config, on):
    """The table number of each layer, or `None`."""
    kind, tables = variant(config["tables"])
    if kind == "Layers":
        return tables
    # Every second layer, including the last.
    return [layer // 2 if (on.layers - 1 - layer) % 2 == 0 else None for layer in range(on.layers)]


CONNECTIONS["ValueEmbedding"] = Design(ValueEmbedding)
