class Update(nn.Module):
    """x_{i+1} = connection(x_i, x_{i-1}, …; branch(x_i)). A stream is the list of x_i, x_{i-1}, …"""

    def __init__(self, branch, connection):
        super().__init__()
        self.branch, self.connection = branch, connection

    def forward(self, stream):
        fx = self.branch(stream[0])
        x = fx + stream[0] if self.connection is None else self.connection(stream, fx)
        return [x, *stream]


class Layer(nn.Module):
    """The update by attention, then the update by the feed-forward network."""

    def __init__(self, attention, feed_forward, connection):
        super().__init__()
        self.attention = Update(attention, connection())
        self.feed_forward = Update(feed_forward, connection())

    def forward(self, stream):
        return self.feed_forward(self.attention(stream))


class Increment(nn.Module):
    """A block as a branch, block(x) − x."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block([x])[0] - x


class Stack(nn.Module):
    """Layers over the whole sequence."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        stream = [x]
        for layer in self.layers:
            stream = layer(stream)
        return stream[0]


def build(model, vocab_size):
    """The embeddings and the block of a model."""
    kind, fields = variant(model)
    composed = fields if kind == "Composed" else {"layers": [model]}
    entries = [variant(entry) for entry in composed["layers"]]
    placed, settings = variant(composed.get("connection") or "None")

    def connection(config):
        # Laurel is the only connection that a file can name.
        return Laurel(settings["Laurel"], stream_width(config))

    def layer(index):
        name, config = entries[index % len(entries)]
        attention, feed_forward, _ = ARCHITECTURES[name]
        inside = (lambda: connection(config)) if placed == "PerSublayer" else lambda: None
        block = Layer(attention(config, index), feed_forward(config), inside)
        return Update(Increment(block), connection(config)) if placed == "PerLayer" else block

    name, config = entries[0]
    layers = [layer(index) for index in range(config["n_layer"])]
    recurrence = composed.get("recurrence")
    block = Recurrent(recurrence, layers) if recurrence else Stack(layers)
    return ARCHITECTURES[name][2](config, vocab_size), block, config["context"]


def stream_width(config):
    return config["width"] if "width" in config else config["d_k"] * config["d_v"]


class ResidualZooConfig(PretrainedConfig):
    model_type = "residual_zoo"

    def __init__(self, model=None, vocab_size=None, **rest):
        self.model, self.vocab_size = model, vocab_size
        super().__init__(**rest)


class ResidualZooForCausalLM(PreTrainedModel, GenerationMixin):
    """The model of `config`, for inference: it has no dropout and keeps no cache."""

    config_class = ResidualZooConfig
    main_input_name = "input_ids"

    def __init__(self, config):
        super().__init__(config)
        self.embeddings, self.block, self.context = build(config.model, config.vocab_size)
        self.post_init()

    def _init_weights(self, module):
        pass

    def get_input_embeddings(self):
        tokens = self.embeddings.tokens
        return tokens if isinstance(tokens, nn.Embedding) else None

    def forward(self, input_ids, attention_mask=None, labels=None, **_):
        if attention_mask is not None and not bool(attention_mask[:, 0].all()):
            raise ValueError("padding on the left is not supported; pad on the right, or give one text at a time")
        if input_ids.shape[1] > self.context:
            raise ValueError(f"{input_ids.shape[1]} tokens are more than the context of {self.context}")
        logits = self.embeddings.unembed(self.block(self.embeddings.embed(input_ids)))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids[:, -self.context :]}
