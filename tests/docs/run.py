#!/usr/bin/env python3
"""Runs the shell and Python blocks of README.md and docs/, and the examples of `--help`, at small sizes.

    tests/docs/run.py TARGET [PAGE|COMMAND...]

TARGET has the built programs: `cargo build --release --bins --examples` puts them into target/release. The blocks of a
page run unchanged, in bash, in a folder of their own. This script replaces `residual-zoo` and `cargo`: it shortens
runs, and runs the built program in place of `cargo run`. Blocks that build the project, or install what other checks
install, are listed in NOT_RUN with the reason.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Words that mark blocks to skip, with the reason.
NOT_RUN = {
    "torch-venv": "the parity check installs LibTorch",
    "CUDARC_CUDA_VERSION": "the last check builds for CUDA",
    "--example …": "a pattern, not a command",
    "linux-source": "it downloads 139 MB; experiments/corpora/test_debian.py makes a package",
    "hf://": "it needs the network; tests/runs/hub.rs has a hub of its own",
    "precision=Bf16": "it needs LibTorch; the tests of backends train in bf16",
    "srun": "it needs a cluster",
    "mpirun": "tests/team.rs runs it, with another build",
    "import openai": "it needs a server; tests/serve/with_openai.py does the same",
    "residual-zoo serve": "it needs a client; tests/serve does the same",
    "benches/": "it measures for minutes, on a quiet machine",
    "CONNECTIONS[": "a part of an exported module",
}
# Subcommands of cargo that other checks run.
OTHER_CHECKS = {"test", "bench", "build", "clippy", "fmt", "doc", "deny", "install"}


# Commands that run before the examples of a command, because the examples need their results.
BEFORE = {
    "depth": "residual-zoo train gpt2/smoke\n",
    "evaluate": "residual-zoo train gpt2/smoke --data my-text.txt --run runs/gpt2\n"
    "residual-zoo train vit/cifar-cpu --data cifar-10-batches-bin\n",
    "export": "residual-zoo train gpt2/smoke\n",
    "import": "residual-zoo train gpt2/smoke --data my-text.txt\n"
    "residual-zoo export runs/gpt2-smoke --to hf gpt2/\n",
    "merge": "residual-zoo train compare/tokenformer --run runs/base\n"
    "for run in a b; do\n"
    "  residual-zoo train compare/tokenformer --init-from runs/base --tune new_tokens=4 --run runs/$run\n"
    "done\n",
}


def main(target, asked):
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    sources = {str(page.relative_to(ROOT)): list(blocks(page.read_text())) for page in pages}
    sources |= examples(target)
    if unknown := set(asked) - set(sources):
        sys.exit(f"{', '.join(unknown)}: no page, and no command with examples; these are {', '.join(sources)}")
    count = 0
    # Small models leave cores idle, so two pages run side by side.
    with ThreadPoolExecutor(max_workers=2) as pool:
        for text, ran in pool.map(lambda source: run_page(source, sources[source], target), asked or sources):
            print(text, end="", flush=True)
            count += ran
    print(f"{count} blocks ran")
    if count == 0:
        sys.exit("no block was found")


def run_page(source, found, target):
    """Runs the blocks of a page. Returns them as text, and the number of blocks that ran."""
    lines, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for language, block in found:
            reason = next((NOT_RUN[word] for word in NOT_RUN if word in block), None)
            lines.append(f"== {source}{': ' + reason if reason else ''}\n{block.strip()}\n")
            if reason is None:
                run(language, block, Path(folder), target, "".join(lines))
                count += 1
    return "".join(lines), count


def examples(target):
    """Returns the examples of each command's help, as a block."""
    def help_of(*command):
        words = [target / "residual-zoo", *command, "--help"]
        shown = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
        return shown.stdout

    commands = re.findall(r"^  (\w+) ", help_of().split("Commands:")[1].split("\n\n")[0], re.MULTILINE)
    found = {}
    for command in commands:
        parts = re.split(r"\nExamples?:\n", help_of(*([command] if command != "help" else [])))
        if len(parts) == 2:
            found[command] = [("sh", BEFORE.get(command, "") + parts[1])]
    return found


def blocks(text):
    """Yields the shell and Python blocks of a page."""
    fenced = re.findall(r"^( *)```(sh|python)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    for indent, language, block in fenced:
        lines = [line.removeprefix(indent) for line in block.splitlines()]
        yield language, "\n".join(lines) + "\n"


def prepare(folder):
    """Makes the files that the pages assume: a text, an experiment, and the run files of the clone."""
    text = (ROOT / "README.md").read_text() + "Once upon a time.\n"
    for name in ["my-text.txt", "my.txt", "other-text.txt", "wiki.valid.raw", "TINY"]:
        (folder / name).write_text(text * 3)
    (folder / "tokenizer.json").write_text('{"kind": "bytes"}')
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text(text)
    (folder / "d.jsonl").write_text(json.dumps({"body": text}) + "\n")
    (folder / "lambada_test.jsonl").write_text(json.dumps({"text": "Once upon a time"}) + "\n")
    hellaswag = {"ctx_a": "Once", "ctx_b": "upon", "ctx": "Once upon", "activity_label": "A", "label": 0}
    (folder / "hellaswag_val.jsonl").write_text(json.dumps({**hellaswag, "endings": ["a time", "a dime"]}) + "\n")
    images = folder / "cifar-10-batches-bin"
    images.mkdir()
    for name in ["data_batch_1.bin", "test_batch.bin"]:
        record = lambda i: bytes([i % 10]) + bytes((i * at) % 251 for at in range(3 * 32 * 32))
        (images / name).write_bytes(b"".join(record(i) for i in range(100)))
    (folder / "openwebtext").mkdir()
    (folder / "openwebtext" / "a.txt").write_text(text)
    (folder / "experiments").symlink_to(ROOT / "experiments")
    page = (ROOT / "docs" / "experiments.md").read_text()
    for block in re.findall(r"```ron\n(\(\n  title:.*?)```", page, re.DOTALL)[:1]:
        (folder / "my-experiment.ron").write_text(block)


def run(language, block, folder, target, before):
    shims = folder / ".shims"
    shims.mkdir(exist_ok=True)
    for name in ["residual-zoo", "cargo", "git"]:
        shim = shims / name
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} --as {name} "$@"\n')
        shim.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{shims}:{os.environ['PATH']}",
        "ZOO_TARGET": str(target.resolve()),
        "HOME_OF_DOCS": str(folder),
    }
    command = ["bash", "-euo", "pipefail", "-c", block] if language == "sh" else [sys.executable, "-c", block]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    if done.returncode != 0:
        sys.exit(f"{before}{done.stdout}\nexit code {done.returncode}")


def shim(name, arguments):
    """Acts as the program `name`."""
    target = Path(os.environ["ZOO_TARGET"])
    if name == "git":
        return clone(arguments)
    if name == "cargo":
        if arguments[0] in OTHER_CHECKS:
            return
        assert arguments[:2] == ["run", "--release"], f"not known here: cargo {arguments}"
        options, arguments = split(arguments[2:], "--")
        if "--example" in options:
            example = options[options.index("--example") + 1]
            known = (ROOT / "experiments").glob(f"*/{example}.ron")
            small = experiment(arguments) if any(known) else arguments
            replace(target / "examples" / example, small)
    # Only the default backend is built here, so `--backend` is removed.
    if "--backend" in arguments:
        at = arguments.index("--backend")
        arguments = arguments[:at] + arguments[at + 2:]
    command, rest = arguments[0], arguments[1:]
    small = {
        "train": train,
        "compare": lambda rest: rest + steps(4),
        "experiment": experiment,
        "sweep": lambda rest: rest + steps(4),
        "generate": lambda rest: rest + ["--tokens", "20"],
        "bench": bench,
    }
    replace(target / "residual-zoo", [command, *last_settings(small.get(command, list)(rest))])


def last_settings(arguments):
    """Returns the arguments without the `--set` assignments whose fields later assignments set. The program refuses two
    assignments to one field."""
    pairs = [at for at, word in enumerate(arguments) if word == "--set"]
    field = {at: arguments[at + 1].split("=")[0] for at in pairs}
    undone = [at for at in pairs if any(field[other] == field[at] for other in pairs if other > at)]
    return [word for at, word in enumerate(arguments) if at not in undone and at - 1 not in undone]


def split(arguments, at):
    """Returns the arguments before and after `at`."""
    index = arguments.index(at) if at in arguments else len(arguments)
    return arguments[:index], arguments[index + 1:]


def steps(count):
    settings = [f"steps={count}", "warmup=1", "validate_every=2", "validate_batches=1"]
    return [part for setting in settings for part in ["--set", f"train.{setting}"]]


def train(rest):
    if "--resume" in rest:
        return rest + ["--set", "train.steps=6"]
    if Path(rest[0]).exists():
        return rest + steps(4)
    config = Path(rest[0]).with_suffix(".ron")
    config = ROOT / "experiments" / config.relative_to("experiments") if config.parts[0] == "experiments" \
        else ROOT / "experiments" / config
    # A local text replaces the download, because there may be no network.
    needs_text = "TinyShakespeare" in config.read_text() and "--data" not in rest
    text = ["--data", f"{os.environ['HOME_OF_DOCS']}/my-text.txt"] if needs_text else []
    return rest + steps(4) + text


def bench(rest):
    # With every connection, a deep model takes minutes.
    deep = "--connections" in rest and any(word.startswith("model.n_layer=") for word in rest)
    shallow = ["--set", "model.n_layer=2", "--set", "train.batch=1"] if deep else []
    return rest + ["--warmup", "1", "--steps", "1"] + shallow


def experiment(rest):
    if "--check" in rest:
        return rest
    if "paper" in rest:
        return rest + ["--check"]
    if "tinyshakespeare" in rest:
        rest[rest.index("tinyshakespeare")] = f"{os.environ['HOME_OF_DOCS']}/my-text.txt"
    seeds = [] if "--seeds" in rest else ["--seeds", "1"]
    return rest + steps(2) + seeds


def clone(arguments):
    assert arguments[0] == "clone", f"not known here: git {arguments}"
    folder = Path(arguments[1].rsplit("/", 1)[1])
    folder.mkdir()
    (folder / "experiments").symlink_to(ROOT / "experiments")


def replace(program, arguments):
    os.execv(program, [str(program), *arguments])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        shim(sys.argv[2], sys.argv[3:])
    elif len(sys.argv) < 2 or shutil.which("bash") is None:
        sys.exit(__doc__)
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
