class Lime(nn.Module):
    """K_h = Σ_{m ≤ l, h'} R_l[h, m H + h'] k_{m,h'},   V_h = Σ_{m ≤ l, h'} R_l[h, m H + h'] v_{m,h'}

    In layer l ≥ 1, key-value head h has the keys K_h and the values V_h. The stream carries the layers' own k_m and
    v_m: k_0, v_0, k_1, v_1, ….
    """

    def __init__(self, config, on, i):
        super().__init__()
        self.is_attention, layer = on.is_attention(i), on.layer(i)
        self.mixing = parameter(on.heads, (layer + 1) * on.heads) if self.is_attention and layer > 0 else None

    def update(self, stream, f):
        x, all_kv = stream.x, list(stream.carried)
        if not self.is_attention:
            return Stream(x + f(x), stream.carried)

        def change(heads, u):
            q, k, v = heads
            all_kv.extend([k, v])
            if self.mixing is None:
                return heads
            mix = lambda x: torch.einsum("hs,bstd->bhtd", self.mixing, torch.cat(x, 1))
            return q, mix(all_kv[0::2]), mix(all_kv[1::2])

        x = x + f(x, change)
        return Stream(x, tuple(all_kv))


CONNECTIONS["Lime"] = Design(Lime)
