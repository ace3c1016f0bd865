class Dynamic(nn.Module):
    """s_α tanh(N(H) W_α) and s_β tanh(N(H) W_β)."""

    def __init__(self, norm, width, columns):
        super().__init__()
        self.norm = norm
        self.w_alpha, self.w_beta = parameter(width, columns), parameter(width, 1)
        self.s_alpha, self.s_beta = parameter(1), parameter(1)

    def forward(self, h):
        h = self.norm(h)
        return self.s_alpha * torch.tanh(h @ self.w_alpha), self.s_beta * torch.tanh(h @ self.w_beta)
