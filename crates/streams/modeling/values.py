def with_first_values(stream, f, change):
    """x + f(x), where attention uses change(v, v_0, u) in place of its values. v_0 are the values of the first layer,
    which uses them unchanged and puts them on the stream."""
    first = list(stream.carried)

    def replaced(heads, u):
        q, k, v = heads
        if first:
            return q, k, change(v, first[0], u[2])
        first.append(v)
        return heads

    x = stream.x + f(stream.x, replaced)
    return Stream(x, tuple(first))


def per_head(g):
    """Views one factor per position and head, [batch, time, heads], as a factor of [batch, heads, time, d]."""
    return g.transpose(1, 2).unsqueeze(-1)
