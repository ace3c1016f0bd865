"""Times `residual-zoo tokenize` and the Python package `tokenizers` alternately, on the same text.

    pip install tokenizers
    cargo build --release
    python benches/tokenizers_rate.py --tokenizer tokenizer.json --text a.txt b.txt [--megabytes 100] [--rounds 3]

The text consists of lines drawn at random from the files. For `residual-zoo`, the whole command is timed: it reads the
text twice and stores the tokens. For Python, only `encode_batch_fast` is timed, on the text in pieces of 8 and of 64
KiB.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

PIECES = [8 << 10, 64 << 10]


def make(texts, path, size):
    lines = [line for text in texts for line in Path(text).read_text("utf-8").splitlines(True)]
    draws, written = random.Random(1), 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            part = "".join(draws.choices(lines, k=20_000))
            written += len(part.encode())
            file.write(part)
    return written


def pieces(text, size):
    """Cuts the text at line ends into pieces of at least this many characters."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + size) + 1 or len(text)
        yield text[start:end]
        start = end


def python(tokenizer, text, size):
    """Tokenizes the text in Python. Returns the time in seconds and the number of tokens."""
    documents, start, tokens = list(pieces(text, size)), time.perf_counter(), 0
    at_once = (64 << 20) // size
    for i in range(0, len(documents), at_once):
        batch = tokenizer.encode_batch_fast(documents[i : i + at_once], add_special_tokens=False)
        tokens += sum(len(encoding.ids) for encoding in batch)
    return time.perf_counter() - start, tokens


def zoo(program, path, tokenizer):
    """Runs `residual-zoo tokenize` with an empty cache. Returns the time in seconds."""
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        command = [program, "tokenize", "--data", path, "--tokenizer", tokenizer]
        environment = os.environ | {"XDG_CACHE_HOME": cache}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokenizer", required=True)
    options.add_argument("--text", nargs="+", required=True)
    options.add_argument("--megabytes", type=int, default=100)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--program", default="target/release/residual-zoo")
    options = options.parse_args()
    tokenizer = Tokenizer.from_file(options.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "text.txt")
        size = make(options.text, path, options.megabytes * 1_000_000)
        text = Path(path).read_text("utf-8")
        ratios = {piece: [] for piece in PIECES}
        for _ in range(options.rounds):
            ours = zoo(options.program, path, options.tokenizer)
            for piece in PIECES:
                theirs, tokens = python(tokenizer, text, piece)
                ratios[piece].append(theirs / ours)
                print(
                    f"residual-zoo {size / ours / 1e6:.2f} MB/s, "
                    f"tokenizers in pieces of {piece >> 10} KiB {size / theirs / 1e6:.2f} MB/s, {tokens} tokens"
                )
        for piece, found in ratios.items():
            shown = ", ".join(f"{ratio:.2f}" for ratio in found)
            print(f"rate of residual-zoo / tokenizers in {piece >> 10} KiB: {statistics.median(found):.2f} ({shown})")


if __name__ == "__main__":
    sys.exit(main())
