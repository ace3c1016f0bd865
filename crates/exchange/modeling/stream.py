class Stream(NamedTuple):
    """The residual stream between two blocks."""

    # x_i [batch, time, width]. A connection with n streams puts them side by side, [batch, time, n · width].
    x: torch.Tensor
    # The tensors that connections carry through depth besides x_i.
    carried: tuple = ()
    # The token ids of the positions, [batch, time], if the connection keeps them.
    ids: Optional[torch.Tensor] = None


class Plain(nn.Module):
    """x_{i+1} = x_i + f(x_i).

    Every connection has such an `update`. f is the branch, with its pre-norm and without the residual. If f is
    attention, f(x, change) uses the heads that `change` returns (see `unchanged`).
    """

    def update(self, stream, f):
        return Stream(stream.x + f(stream.x), stream.carried)


class Ends(nn.Module):
    """The operations of a connection at both ends of a stream. Most connections have none."""

    def open(self, x):
        return Stream(x)

    def close(self, stream):
        return stream.x


class Sites(NamedTuple):
    """The connections on one stream."""

    width: int
    # Number of connections on the stream, and in a layer.
    count: int
    per_layer: int
    # Whether a connection surrounds a whole layer.
    around_layers: bool
    # Whether a norm follows the end of the stream.
    into_norm: bool
    # Number of heads of keys and of values, and the width of a head.
    heads: int
    d: int
    # Number of token ids.
    vocab_size: int

    @property
    def layers(self):
        return self.count // self.per_layer

    def layer(self, i):
        """The layer of connection i."""
        return i // self.per_layer

    def is_attention(self, i):
        return not self.around_layers and i % self.per_layer == 0


class Frame(NamedTuple):
    """Requirements of a connection on the model."""

    pre_norm: bool = True
    final_norm: bool = True
    feed_forward: bool = True
    # Whether the attention of every layer projects its own values. If not, the first layer of each stream does.
    own_values: bool = True


class Design(NamedTuple):
    """The parts of a connection, as functions of its config and its sites."""

    # Connection i of the stream: connection(config, on, i).
    connection: Callable = lambda config, on, i: Plain()
    # The ends of the stream: ends(config, on).
    ends: Callable = lambda config, on: Ends()
    # frame(config).
    frame: Callable = lambda config: Frame()


CONNECTIONS = {"None": Design()}


def through(ends, layers, x, ids=None):
    """Passes x of the tokens `ids` through `layers`, on a stream that `ends` opens and closes."""
    stream = ends.open(x)._replace(ids=ids)
    for layer in layers:
        stream = layer(stream)
    return ends.close(stream)
