#!/usr/bin/env python3
r"""Times programs in turn on one machine and compares them.

    python benches/in_turn.py --suite gpt2 --python torch-venv/bin/python
    python benches/in_turn.py --command old='./old bench --json {json}' \
        --command new='./new bench --json {json}'

Every program runs once in each round. A program is one process that writes its step time, in seconds, as the field
"step" of a JSON file. Programs that are compared form a group. Each round starts with a different group, and every
second round runs the programs of each group in reverse order. So a machine that gets slower or faster affects all
programs equally.

The table gives the median over the rounds, the range, and the ratio to the first program of the same group in
the same round. It also gives the number of cores that other programs used at the same time, because their load
makes the times unreliable. --busy keeps one core busy on purpose.
"""

import argparse
import json
import os
import random
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Vocabulary sizes: the synthetic language (of run files without `data`), tiny shakespeare, and GPT-2.
SYNTHETIC, SHAKESPEARE, GPT2 = 56, 65, 50257
# GPT2, rounded up to a multiple of 64, as in nanoGPT.
PADDED = 50304


class Problem(Exception):
    """A message for the user."""


@dataclass
class Command:
    name: str
    group: str
    words: list
    backend: str | None = None


class Suites:
    """Builds the commands of each suite."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder

    def zoo(self, group, name, file, backend, *fields, steps=8):
        words = [str(self.args.zoo), "bench", f"experiments/{file}.ron", "--backend", backend]
        for field in fields:
            words += ["--set", field]
        return Command(f"{name}, {backend}", group, words + self.counts(steps), backend)

    def torch(self, group, form, steps=8, **sizes):
        words = [str(self.args.python), str(ROOT / "benches/pytorch_step.py"), "--form", form]
        for name, value in sizes.items():
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        name = f"PyTorch, {form}" + ", TF32" * ("tf32" in sizes) + ", compiled" * ("compile" in sizes)
        name += ", padded" * (sizes.get("vocabulary") == PADDED)
        return Command(name, group, words + self.counts(steps))

    def counts(self, steps):
        steps = self.args.steps or steps
        warmup = max(2, steps // 10) if self.args.warmup is None else self.args.warmup
        return ["--warmup", str(warmup), "--steps", str(steps), "--json", "{json}"]

    def text(self, vocabulary):
        """Writes a random text of `vocabulary` different characters, each one a token. Returns the fields of a run file
        that select this text."""
        path = self.folder / f"{vocabulary}.txt"
        letters = [chr(0x10000 + i) for i in range(vocabulary)]
        drawn = random.Random(1).choices(letters, k=500_000)
        path.write_text("".join(letters + drawn), encoding="utf-8")
        return (
            "data.source=" + json.dumps({"Path": str(path)}),
            "data.tokenizer=Chars",
            "data.cache=" + json.dumps(str(self.folder / "tokens")),
        )

    def gpt2(self):
        group = "GPT-2 10.7M, 8 x 256"
        forms = [self.torch(group, form, vocabulary=SYNTHETIC) for form in ("fused", "explicit", "bf16")]
        return forms + [self.zoo(group, "residual-zoo", "gpt2/bench", backend) for backend in CPU]

    def modern(self):
        """The modern decoder, and a GPT-2 with the same layers and width."""
        group = "Llama 9.5M, 8 x 256"
        return [
            self.torch(group, "fused", vocabulary=SYNTHETIC, **{"kv-heads": 2}),
            *(self.zoo(group, "residual-zoo", "llama/bench", backend) for backend in CPU),
            *self.gpt2()[0:1],
            *self.gpt2()[3:],
        ]

    def nanogpt(self):
        group = "nanoGPT's CPU recipe, 12 x 64"
        sizes = {"layers": 4, "heads": 4, "width": 128, "time": 64, "batch": 12}
        fields = self.text(SHAKESPEARE)
        return [
            self.torch(group, "fused", steps=100, vocabulary=SHAKESPEARE, **sizes),
            *(
                self.zoo(group, "residual-zoo", "gpt2/shakespeare-cpu", backend, *fields, steps=100)
                for backend in CPU
            ),
        ]

    def small(self):
        group = "GPT-2 110k of `compare`, 8 x 128"
        sizes = {"layers": 2, "heads": 4, "width": 64, "time": 128, "batch": 8}
        return [
            self.torch(group, "fused", steps=200, vocabulary=SYNTHETIC, **sizes),
            *(self.zoo(group, "residual-zoo", "compare/gpt2", backend, steps=200) for backend in CPU),
        ]

    def bf16(self):
        small, large = "GPT-2 10.7M, 8 x 256", "GPT-2 124M, 1 x 512"
        sizes = {"layers": 12, "heads": 12, "width": 768, "time": 512, "batch": 1, "vocabulary": GPT2}
        fields = [
            "model.n_layer=12",
            "model.n_head=12",
            "model.width=768",
            "model.context=512",
            "model.bias=true",
            "train.batch=1",
            *self.text(GPT2),
        ]
        return [
            command
            for precision, form in (("F32", "fused"), ("Bf16", "bf16"))
            for command in (
                self.torch(small, form, vocabulary=SYNTHETIC),
                self.zoo(small, f"residual-zoo, {precision}", "gpt2/bench", "tch", f"train.precision={precision}"),
                self.torch(large, form, bias=True, **sizes),
                self.zoo(large, f"residual-zoo, {precision}", "gpt2/bench", "tch", f"train.precision={precision}", *fields),
            )
        ]

    def gpu(self):
        group = "50,257 ids, 8 x 1024"
        sizes = {"layers": 12, "heads": 12, "width": 768, "time": 1024, "batch": 8, "vocabulary": GPT2}
        sizes |= {"bias": True, "device": "cuda"}
        # The zoo pads the unembedding to this number of columns, so that rows have a multiple of 16 bytes.
        padded = sizes | {"vocabulary": PADDED}
        torch = [
            self.torch(group, form, **sizes, **more)
            for form, more in [
                ("fused", {}),
                ("fused", {"tf32": True}),
                ("explicit", {}),
                ("bf16", {}),
                ("fused", {"tf32": True, "compile": True}),
                ("bf16", {"compile": True}),
            ]
        ]
        torch += [self.torch(group, "bf16", **padded), self.torch(group, "fused", tf32=True, **padded)]
        models = ("gpt2/bench-124m", "rmt/bench-134m", "laurel/bench-126m", "tokenformer/bench-150m")
        ids = self.text(GPT2)
        return torch + [
            self.zoo(group, f"{file}, {precision}", file, backend, f"train.precision={precision}", *ids)
            for file in models
            for backend, precision in (("tch", "F32"), ("tch", "Tf32"), ("tch", "Bf16"), ("cuda", "Tf32"), ("cuda", "Bf16"))
        ]

    def rmt(self):
        small = ("GPT-2 10.7M", "gpt2/bench"), ("RMT 7.2M", "rmt/bench")
        # With 50,257 token ids, these models have 49M and 46M parameters.
        large = ("GPT-2 49M", "gpt2/bench-49m"), ("RMT 46M", "rmt/bench-46m")
        ids = self.text(4096)
        return self.pairs("8 x 256", *small) + self.pairs("4096 ids, 4 x 256", *large, fields=ids)

    def tokenformer(self):
        models = ("GPT-2 10.7M", "gpt2/bench"), ("TokenFormer 10.7M", "tokenformer/bench")
        return self.pairs("8 x 256", *models)

    def pairs(self, batch, *models, fields=()):
        """Compares the models with the first model, on each backend."""
        return [
            self.zoo(f"{batch}, {backend}", name, file, backend, *fields)
            for backend in CPU
            for name, file in models
        ]


# Backends of the program that run on a CPU.
CPU = ("flex", "tch")
SUITES = {
    "gpt2": Suites.gpt2,
    "bf16": Suites.bf16,
    "gpu": Suites.gpu,
    "modern": Suites.modern,
    "nanogpt": Suites.nanogpt,
    "small": Suites.small,
    "rmt": Suites.rmt,
    "tokenformer": Suites.tokenformer,
}


def main():
    args = options()
    with tempfile.TemporaryDirectory() as folder:
        if args.suite:
            commands = without_missing_backends(SUITES[args.suite](Suites(args, Path(folder))), args)
        else:
            commands = [named(text) for text in args.command]
            if len({command.name for command in commands}) < len(commands):
                raise Problem("two commands have the same name")
        if not commands:
            raise Problem("no program is left to time")
        with busy_core() if args.busy else nullcontext():
            runs = rounds(commands, args.rounds, Path(folder) / "step.json")
    results = summary(commands, runs)
    print(table(results, args.markdown))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


def rounds(commands, count, file):
    """Returns the runs of each command: pairs of the step time in seconds and the number of cores that other programs
    used."""
    runs = [[] for _ in commands]
    for i in range(count):
        for j in order(commands, i):
            seconds, others = run(commands[j], file)
            runs[j].append((seconds, others))
            what = f"{commands[j].group}, {commands[j].name}".removeprefix(", ")
            figures = f"{milliseconds(seconds)} ms, others used {others:.1f} cores"
            print(f"round {i + 1}/{count}: {what}: {figures}", file=sys.stderr)
    return runs


def order(commands, i):
    """Returns the indices of the commands in the order of round i. The programs of a group run one after another."""
    groups = {}
    for j, command in enumerate(commands):
        groups.setdefault(command.group, []).append(j)
    groups = list(groups.values())
    first = i % len(groups)
    step = -1 if i % 2 else 1
    return [j for group in groups[first:] + groups[:first] for j in group[::step]]


def run(command, file):
    file.unlink(missing_ok=True)
    start, before = time.monotonic(), used_by_others()
    output(command.name, [word.replace("{json}", str(file)) for word in command.words])
    others = max(0.0, used_by_others() - before) / (time.monotonic() - start)
    try:
        result = json.loads(file.read_text())
        # `residual-zoo bench` writes a list with one entry per model and backend.
        return float(result[0]["step"] if isinstance(result, list) else result["step"]), others
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise Problem(f"{command.name}: wrote no JSON with a field `step`") from error


def used_by_others():
    """Returns the CPU seconds that other programs have used since the machine started, or 0 if this is unknown."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, fields[:8])
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK") - ours.ru_utime - ours.ru_stime


def output(name, words):
    """Runs a program. If it fails, raises a `Problem` with the last line of its error output."""
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise Problem(f"{name}: cannot run {words[0]}: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Problem(f"{name}: {lines[-1].removeprefix('error: ')}")


def without_missing_backends(commands, args):
    """Leaves out the commands whose backend is not compiled in, and reports them."""
    missing = set()
    for backend in sorted({command.backend for command in commands if command.backend}):
        words = [str(args.zoo), "bench", "gpt2/smoke", "--backend", backend, "--warmup", "0", "--steps", "1"]
        try:
            output("residual-zoo", words)
        except Problem as problem:
            if "without backend" not in str(problem):
                raise
            print(f"{backend} is left out: {args.zoo} was built without it", file=sys.stderr)
            missing.add(backend)
    return [command for command in commands if command.backend not in missing]


def named(text):
    name, equals, command = text.partition("=")
    if not equals or "{json}" not in command:
        raise Problem(f"--command {text}: expected NAME='PROGRAM … {{json}}'")
    try:
        return Command(name, "", shlex.split(command))
    except ValueError as error:
        raise Problem(f"--command {text}: {error}") from error


@contextmanager
def busy_core():
    """Keeps one core busy with another process while the `with` block runs."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def summary(commands, runs):
    results, first = [], {}
    for command, pairs in zip(commands, runs):
        seconds, others = map(list, zip(*pairs))
        base = first.setdefault(command.group, seconds)
        ratios = [a / b for a, b in zip(seconds, base)]
        results.append({
            "group": command.group,
            "name": command.name,
            "step": statistics.median(seconds),
            "fastest": min(seconds),
            "slowest": max(seconds),
            "ratio": statistics.median(ratios),
            "ratio_per_round": [min(ratios), max(ratios)],
            "others": statistics.median(others),
            "rounds": seconds,
        })
    return results


def table(results, markdown):
    head = ["group", "program", "step, ms", "range, ms", "ratio", "ratio per round", "others, cores"]
    rows = [
        [
            result["group"],
            result["name"],
            milliseconds(result["step"]),
            f"{milliseconds(result['fastest'])}–{milliseconds(result['slowest'])}",
            f"{result['ratio']:.2f}",
            "–".join(f"{ratio:.2f}" for ratio in result["ratio_per_round"]),
            f"{result['others']:.1f}",
        ]
        for result in results
    ]
    if markdown:
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in [head, *rows])
    return "\n".join(lines)


def milliseconds(seconds):
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def options():
    parser = argparse.ArgumentParser(description="Times programs in turn on one machine and compares them.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--suite", choices=SUITES)
    what.add_argument(
        "--command",
        action="append",
        metavar="NAME=COMMAND",
        help="a program to time; it runs in the repository's root, and {json} stands for the file that it writes",
    )
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument(
        "--zoo",
        type=Path,
        default=target / "release/residual-zoo",
        help="the built program [default: release/residual-zoo in $CARGO_TARGET_DIR or target]",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="a Python that has PyTorch [default: this one]"
    )
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--warmup", type=at_least(0), help="untimed steps before the timed ones")
    parser.add_argument("--steps", type=at_least(1), help="timed steps")
    parser.add_argument("--busy", action="store_true", help="keep one core busy with another process")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args()
    # Programs run in the repository's root, so paths become absolute. A Python may be a symbolic link. The link
    # is not resolved, because Python finds its virtual environment through it.
    args.zoo = Path(os.path.abspath(args.zoo))
    if os.sep in args.python:
        args.python = os.path.abspath(args.python)
    if args.command and (args.warmup is not None or args.steps is not None):
        raise Problem("--warmup and --steps are for a --suite; give a --command its own")
    if args.json and not args.json.absolute().parent.is_dir():
        raise Problem(f"--json {args.json}: there is no such folder")
    if args.suite and not args.zoo.is_file():
        raise Problem(f"{args.zoo} does not exist: build it with `cargo build --release`, or set --zoo")
    return args


def at_least(least):
    def integer(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return integer


if __name__ == "__main__":
    try:
        main()
    except Problem as problem:
        sys.exit(f"error: {problem}")
