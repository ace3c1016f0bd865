#!/usr/bin/env python3
"""Times `evaluate` and `lm_eval --model hf` alternately, on generated tasks, with a model that has random weights.

    benches/evaluate.py [--program target/release/residual-zoo] [--rounds 2]

Needs torch, transformers, accelerate and lm_eval, and a quiet machine.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "target" / "release" / "residual-zoo", type=Path)
    parser.add_argument("--rounds", default=2, type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.program.resolve(), options.rounds)


def measure(folder, program, rounds):
    tasks = folder / "tasks"
    tasks.mkdir()
    write_tasks(tasks)
    write_model(folder / "model")
    run = lambda *command: subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    run(program, "import", "model", "--tokenizer", "bytes", "--run", "run")
    run(program, "export", "run", "--to", "hf", "exported")
    files = [f"--task={path.stem}={path}" for path in sorted(tasks.iterdir())]
    for number in range(rounds):
        ours = timed(lambda: run(program, "evaluate", "run", "--out", f"ours{number}", *files))
        reference = [sys.executable, ROOT / "tests" / "evaluate" / "reference.py", "exported", "tasks", f"{number}.json"]
        theirs = timed(lambda: run(*reference, "prefix_token_id=0"))
        print(f"evaluate {ours:.1f} s, lm_eval {theirs:.1f} s, ratio {ours / theirs:.2f}")


ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def timed(work):
    start = time.monotonic()
    work()
    return time.monotonic() - start


def write_tasks(folder):
    draw = random.Random(1)
    words = ["".join(draw.choices("aeiounrstlmd", k=draw.randint(1, 9))) for _ in range(2000)]

    def text(low, high):
        length, found = draw.randint(low, high), ""
        while len(found) < length:
            found += draw.choice(words) + " "
        return found.strip()

    question = lambda: dict(
        activity_label="A", ctx_a=text(150, 300), ctx_b=text(30, 50), endings=[text(50, 110) for _ in range(4)], label=1
    )
    documents = {
        "hellaswag": [question() for _ in range(60)],
        "lambada": [dict(text=text(200, 450)) for _ in range(100)],
        "wikitext": [dict(page=text(15_000, 15_000)) for _ in range(3)],
    }
    for name, lines in documents.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_model(folder):
    import transformers

    sizes = dict(n_layer=6, n_head=6, n_embd=384, n_positions=1024, vocab_size=256, bos_token_id=0, eos_token_id=0)
    no_dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **no_dropout)).save_pretrained(folder)


if __name__ == "__main__":
    main()
