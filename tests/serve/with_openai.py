#!/usr/bin/env python3
"""Uses a residual-zoo server through OpenAI's own package.

    with_openai.py http://HOST:PORT/v1
"""

import sys

import openai


def main(address):
    client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
    (model,) = client.models.list()
    assert client.models.retrieve(model.id).id == model.id
    settings = {"model": model.id, "max_tokens": 24, "seed": 7, "temperature": 0.9, "top_p": 0.95}
    whole = client.completions.create(prompt="the cat", logprobs=2, **settings)
    (choice,) = whole.choices
    assert choice.finish_reason in ("length", "stop"), choice
    # The token that ends a text counts, but has no text.
    tokens = len(choice.logprobs.tokens) + (choice.finish_reason == "stop")
    assert whole.usage.completion_tokens == tokens <= 24, whole
    assert all(len(top) >= 2 for top in choice.logprobs.top_logprobs), choice.logprobs
    stream = client.completions.create(prompt="the cat", stream=True, stream_options={"include_usage": True}, **settings)
    pieces = list(stream)
    text = "".join(choice.text for piece in pieces for choice in piece.choices)
    assert text == choice.text, (text, choice.text)
    assert pieces[-1].usage == whole.usage, pieces[-1]
    batch = client.completions.create(prompt=["the cat", "a dog"], n=2, echo=True, stop=["\n\n"], **settings)
    assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]
    assert all(choice.text.startswith(prompt) for choice, prompt in zip(batch.choices, ["the cat"] * 2 + ["a dog"] * 2))
    for wrong, error in [
        ({"max_tokens": -1}, openai.BadRequestError),
        ({"model": "another"}, openai.NotFoundError),
        ({"prompt": "word " * 1000}, openai.BadRequestError),
    ]:
        try:
            client.completions.create(**({"prompt": "the cat"} | settings | wrong))
        except error as refused:
            print(refused.status_code, refused.body["message"])
        else:
            raise AssertionError(wrong)
    # The client hangs up in the middle of a stream.
    with client.completions.create(prompt="a", stream=True, **settings | {"max_tokens": 4000}) as stream:
        next(iter(stream))
    print(f"{openai.__version__}: {len(pieces)} pieces, {choice.text!r}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
