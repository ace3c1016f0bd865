class Recurrent(nn.Module):
    """The recurrence of eqs. 8-10 around each of its layers in turn."""

    def __init__(self, config, layers, ends):
        super().__init__()
        self.layers, self.ends = nn.ModuleList(layers), nn.ModuleList(ends)
        self.size, self.form = config["block"], config["form"]
        kind, _ = variant(config["alpha"])
        self.alpha = None if kind == "Sigmoid" else nn.Parameter(torch.empty(1), kind != "Fixed")
        self.alpha_logit = parameter(1) if kind == "Sigmoid" else None

    def forward(self, x, ids, lengths, norm):
        alpha = self.alpha_logit.sigmoid() if self.alpha is None else self.alpha.clamp(0, 1)
        for layer, ends in zip(self.layers, self.ends):
            x = self.recur(lambda block: through(ends, [layer], block), alpha, x, lengths)
        return x

    def recur(self, tau, alpha, x, lengths):
        blocks, ys = x.split(self.size, 1), []
        h = tau(blocks[0])
        carried = torch.zeros_like(h) if self.form == "Paper" else blocks[0]
        for index, block in enumerate(blocks[1:], 1):
            # The last block of a sequence has no carry (eq. 10). τ is causal, so padding does not change the outputs.
            goes_on = (lengths > index * self.size)[:, None, None]
            carry = torch.where(goes_on, alpha * carried, torch.zeros_like(carried))
            both = tau(torch.cat([carry + h, carry[:, : block.shape[1]] + block], 1))
            y, h_next = both.split([self.size, block.shape[1]], 1)
            carried, h = (h if self.form == "Paper" else y), h_next
            ys.append(y)
        return torch.cat([*ys, tau(h)], 1)
