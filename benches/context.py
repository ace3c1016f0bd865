#!/usr/bin/env python3
"""Measures the memory and time of a training step on Flex by context length, for every model of `compare`.

    python benches/context.py                    # two Markdown tables
    python benches/context.py --svg memory.svg   # and a plot of the memory

Memory is the peak of the memory in use. For each model, the script fits the line memory = a + b · T, where T is the
context length. `off` is the largest distance of a point from this line, in percent. Time is the median step time
divided by the number of tokens in the batch. It does not depend on T if the cost of a step is linear in T.

RESIDUAL_ZOO_OPS=plain measures the plain forms of the operations. Their attention keeps [time, time] tensors.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ["gpt2", "rmt", "tokenformer", "laurel", "recurrent", "laurel-rmt"]
CONTEXTS = [256, 512, 1024, 2048]
MIB = 2**20


def measure(zoo, model, context, batch):
    """Returns the peak memory of a step in bytes, and the seconds per token."""
    composed = model in ("laurel", "recurrent", "laurel-rmt")
    field = "model.layers.0.context" if composed else "model.context"
    print(f"{model}, {context} tokens", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        words = [zoo, "bench", f"compare/{model}", "--backend", "flex", "--warmup", "1", "--steps", "5"]
        words += ["--set", f"{field}={context}", "--set", f"train.batch={batch}", "--json", str(out)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"error: {' '.join(words)}: {done.stderr.strip()}")
        found = json.loads(out.read_text())[0]
        return found["peak_memory"], found["step"] / (batch * context)


def fit(points):
    """Returns a and b of the least-squares line a + b · T, and the largest relative distance of a point from it."""
    n = len(points)
    mean_t, mean_y = sum(t for t, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((t - mean_t) * (y - mean_y) for t, y in points) / sum((t - mean_t) ** 2 for t, _ in points)
    base = mean_y - slope * mean_t
    return base, slope, max(abs(y / (base + slope * t) - 1) for t, y in points)


def svg(curves):
    """Draws the curves as an SVG document."""
    width, height, left, bottom = 640, 400, 60, 40
    top = max(y for points in curves.values() for _, y in points)
    x = lambda t: left + (width - left - 120) * t / CONTEXTS[-1]
    y = lambda b: height - bottom - (height - bottom - 20) * b / top
    colours = ["#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b9770e", "#555555"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><title>Peak memory of a training step against context length</title>'
        f'<rect width="{width}" height="{height}" fill="white"/>'
    ]
    for context in CONTEXTS:
        parts.append(f'<text x="{x(context)}" y="{height - 22}" text-anchor="middle">{context}</text>')
        parts.append(f'<path d="M{x(context)} {y(0)}V20" stroke="#ddd"/>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        label = f"{share * top / MIB:.0f}"
        parts.append(f'<text x="{left - 6}" y="{y(share * top) + 4}" text-anchor="end">{label}</text>')
        parts.append(f'<path d="M{left} {y(share * top)}H{x(CONTEXTS[-1])}" stroke="#ddd"/>')
    parts.append(f'<text x="{left}" y="{height - 6}">context T, tokens; memory in MiB</text>')
    ends = []
    for (name, points), colour in zip(curves.items(), colours):
        path = "L".join(f"{x(t):.1f} {y(b):.1f}" for t, b in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        ends.append([y(points[-1][1]) + 4, name, colour])
    ends.sort()
    for before, after in zip(ends, ends[1:]):
        after[0] = max(after[0], before[0] + 14)
    parts += [f'<text x="{x(CONTEXTS[-1]) + 6}" y="{at:.1f}" fill="{c}">{name}</text>' for at, name, c in ends]
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--zoo", default=str(target / "release/residual-zoo"), help="the program")
    parser.add_argument("--batch", type=int, default=4, help="sequences per batch [default: 4]")
    parser.add_argument("--svg", help="also write a plot")
    args = parser.parse_args()
    args.zoo = os.path.abspath(args.zoo)
    if not Path(args.zoo).exists():
        sys.exit(f"error: {args.zoo} does not exist; build it with `cargo build --release`, or set --zoo")
    found = {m: {t: measure(args.zoo, m, t, args.batch) for t in CONTEXTS} for m in MODELS}
    curves = {model: [(t, memory) for t, (memory, _) in of.items()] for model, of in found.items()}
    head = "".join(f" T = {t} |" for t in CONTEXTS)
    print(f"Memory, MiB:\n\n| model |{head} KiB per token of context | off |")
    print("|---|" + "---|" * (len(CONTEXTS) + 2))
    for model, points in curves.items():
        _, slope, off = fit(points)
        cells = "".join(f" {b / MIB:.1f} |" for _, b in points)
        print(f"| {model} |{cells} {slope / 1024:.0f} | {100 * off:.1f} % |")
    print(f"\nTime, µs per token:\n\n| model |{head}")
    print("|---|" + "---|" * len(CONTEXTS))
    for model, of in found.items():
        print(f"| {model} |" + "".join(f" {1e6 * seconds:.1f} |" for _, seconds in of.values()))
    if args.svg:
        Path(args.svg).write_text(svg(curves))


if __name__ == "__main__":
    main()
