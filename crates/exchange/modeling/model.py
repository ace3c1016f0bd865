class Update(nn.Module):
    """A branch and the connection that joins it to the stream."""

    def __init__(self, branch, connection):
        super().__init__()
        self.branch, self.connection = branch, connection

    def forward(self, stream):
        return self.connection.update(stream, self.branch)


class Layer(nn.Module):
    """The update by attention, then, if present, the update by the feed-forward network."""

    def __init__(self, attention, feed_forward=None):
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, stream):
        stream = self.attention(stream)
        return stream if self.feed_forward is None else self.feed_forward(stream)


class Increment(nn.Module):
    """A block as a branch, block(x) − x. The block starts a new stream."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(Stream(x)).x - x


class Stack(nn.Module):
    """Layers over the whole sequence. Tokens after the end of a row do not change the row."""

    size = None

    def __init__(self, layers, ends):
        super().__init__()
        self.layers, self.ends = nn.ModuleList(layers), ends

    def forward(self, x, ids, lengths, norm):
        return through(self.ends, self.layers, x, ids)


def build(model, vocab_size):
    """The embeddings and the block of a model."""
    kind, fields = variant(model)
    composed = fields if kind == "Composed" else {"layers": [model]}
    entries = [variant(entry) for entry in composed["layers"]]
    placed, connection = variant(composed.get("connection") or "None")
    name, settings = variant(connection or "None")
    design = CONNECTIONS[name]
    frame, around_layers = design.frame(settings), placed == "PerLayer"

    def layer(index, on, i):
        name, config = entries[index % len(entries)]
        attention, feed_forward, _ = ARCHITECTURES[name]
        branches = [attention(config, index, frame._replace(own_values=frame.own_values or i == 0))]
        if frame.feed_forward:
            branches.append(feed_forward(config, frame))
        if around_layers:
            block = Layer(*(Update(branch, Plain()) for branch in branches))
            return Update(Increment(block), design.connection(settings, on, i))
        return Layer(*(Update(branch, design.connection(settings, on, i + at)) for at, branch in enumerate(branches)))

    first, config = entries[0]
    width, n_layer = stream_width(config), config["n_layer"]
    recurrence, loops = composed.get("recurrence"), composed.get("loops")
    # Number of layers of each stream.
    sizes = [1] * n_layer if recurrence else loop_sizes(loops, n_layer) if loops else [n_layer]
    per_layer = 1 if around_layers or not frame.feed_forward else 2
    layers, ends = [], []
    for size in sizes:
        count, into_norm = size * per_layer, not (recurrence or loops)
        on = Sites(width, count, per_layer, around_layers, into_norm, *attention_heads(config), vocab_size)
        layers += [layer(len(layers) + at, on, at * per_layer) for at in range(size)]
        ends.append(design.ends(settings, on))
    if recurrence:
        block = Recurrent(recurrence, layers, ends)
    elif loops:
        block = Loops(loops, layers, ends, width)
    else:
        block = Stack(layers, *ends)
    return ARCHITECTURES[first][2](config, vocab_size, frame), block, config["context"]


def stream_width(config):
    return config["width"] if "width" in config else config["d_k"] * config["d_v"]


def attention_heads(config):
    """Number of heads of keys and of values, and the width of a head."""
    if "rank" in config:
        return config["rank"], config["d_v"]
    heads = config["n_head"]
    return config.get("n_kv_head") or heads, config.get("head_dim") or config["width"] // heads


class ResidualZooConfig(PretrainedConfig):
    model_type = "residual_zoo"

    def __init__(self, model=None, vocab_size=None, pad_token_id=None, **rest):
        self.model, self.vocab_size, self.pad_token_id = model, vocab_size, pad_token_id
        super().__init__(**rest)


class ResidualZooForCausalLM(PreTrainedModel, GenerationMixin):
    """The model of `config`, for inference: it has no dropout and keeps no cache.

    Padding has no effect: each row is computed from its real tokens alone, wherever the attention mask has zeros.
    The logits at a position of padding equal the logits of the real token before it.
    """

    config_class = ResidualZooConfig
    main_input_name = "input_ids"
    accepts_loss_kwargs = False
    # Refuses assisted generation, which would have to shorten a cache.
    _is_stateful = True

    def __init__(self, config):
        super().__init__(config)
        self.embeddings, self.block, self.context = build(config.model, config.vocab_size)
        self.post_init()

    def _init_weights(self, module):
        pass

    def get_input_embeddings(self):
        tokens = self.embeddings.tokens
        return tokens if isinstance(tokens, nn.Embedding) else None

    def resize_token_embeddings(self, *_, **__):
        raise NotImplementedError("the vocabulary of this model is fixed; train another one with the new tokens")

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, labels=None, **others):
        refuse(others)
        if input_ids is None:
            raise ValueError("this model reads input_ids only")
        if attention_mask is None:
            self.refuse_unmarked_padding(input_ids)
            attention_mask = torch.ones_like(input_ids)
        real = real_tokens(attention_mask, input_ids)
        positions = (real.cumsum(1) - 1).clamp(min=0)
        if position_ids is not None and bool((real & (position_ids != positions)).any()):
            raise ValueError("position_ids must count the real tokens of each row from 0; leave them out")
        lengths = real.sum(1)
        time = max(int(lengths.max()), 1)
        if time > self.context:
            raise ValueError(f"{time} tokens are more than the context of {self.context}")
        is_padded = not bool(real.all())
        if is_padded:
            # Real tokens first, in their order.
            order = real.int().argsort(dim=1, descending=True, stable=True)[:, :time]
            input_ids = input_ids.masked_fill(~real, 0).gather(1, order)
            labels = None if labels is None else labels.masked_fill(~real, -100).gather(1, order)
        x = self.block(self.embeddings.embed(input_ids), input_ids, lengths, self.embeddings.norm)
        logits = self.embeddings.unembed(x)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        if is_padded:
            logits = logits.gather(1, positions[..., None].expand(-1, -1, logits.shape[-1]))
        return CausalLMOutput(loss=loss, logits=logits)

    def refuse_unmarked_padding(self, ids):
        """Refuses ids that look padded, where padding without a mask would change the logits of other tokens."""
        pad, rows, time = self.config.pad_token_id, *ids.shape
        ends = [getattr(self.config, name, None) for name in ("bos_token_id", "eos_token_id")]
        is_end = any(pad in end if isinstance(end, list) else pad == end for end in ends)
        # A sequence may begin with one token that also separates sequences.
        if pad is not None and time > is_end and bool((ids[:, : 1 + is_end] == pad).all(1).any()):
            raise ValueError("the input begins with padding; give an attention_mask")
        size = self.block.size
        if size is None:
            return
        # lm_eval pads with zeros on the right, without a mask.
        pads = [pad, 0] if rows > 1 else [pad] if not is_end else []
        is_pad = sum((ids == pad for pad in pads if pad is not None), torch.zeros_like(ids)).clamp(max=1)
        least = (time - is_pad.flip(1).cumprod(1).sum(1)).clamp(min=1)
        if bool(((least - 1) // size != (time - 1) // size).any()):
            raise ValueError(
                f"a row ends with ids that may be padding, which would change what this model makes of its last "
                f"{size} tokens; give an attention_mask, or one row at a time (lm_eval: batch_size=1)"
            )

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        # The last real tokens, at most as many as the context holds.
        last = attention_mask.flip(1).cumsum(1).flip(1) <= self.context
        return {"input_ids": input_ids, "attention_mask": attention_mask * last}


def refuse(others):
    """Refuses arguments that would be ignored although they change the result."""
    ignored = ("use_cache", "return_dict", "token_type_ids")
    given = [name for name, value in others.items() if value is not None and value is not False and name not in ignored]
    if given:
        raise ValueError(f"this model does not read {', '.join(given)}; it reads input_ids, attention_mask and labels")


def real_tokens(mask, ids):
    """The positions where `mask` is 1. The mask must have the shape of `ids`. Other masks, such as additive ones, are
    refused."""
    if mask.shape != ids.shape:
        raise ValueError(f"attention_mask is {list(mask.shape)}, but input_ids are {list(ids.shape)}")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("attention_mask must consist of 0 for padding and 1 for tokens")
    return mask.bool()
