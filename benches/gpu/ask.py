#!/usr/bin/env python3
r"""Answers questions about speed and correctness on a GPU machine. Each command has a time limit.

    python benches/gpu/ask.py --tch PROGRAM --tests TESTS --out OUT          # all questions, the most useful first
    python benches/gpu/ask.py --tch PROGRAM --out OUT --only gpt2,models
    python benches/gpu/ask.py --tch PROGRAM --tests TESTS --out OUT --try    # tiny sizes, on a CPU

PROGRAM is `residual-zoo`, built with the feature `tch`. TESTS is its test binary `backends` (docs/performance.md builds
both). `--cuda`, `--cuda-tests` and `--cuda-ops` are the program, the same test binary and the benchmark `ops`, built
with the feature `cuda`. All of these files may be compressed (`.xz`). The Python that runs this script needs the
PyTorch version that PROGRAM was built for. Run the script in the repository's root.

Every answer is a line of OUT/answers.jsonl, written as soon as it is known. `benches/gpu/tables.py OUT` makes the
tables of docs/performance.md from this file.
"""

import argparse
import json
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
# The compared models: run files, and connections around GPT-2.
FILES = {
    "gpt2": "gpt2/bench-124m",
    "rmt": "rmt/bench-134m",
    "laurel": "laurel/bench-126m",
    "tokenformer": "tokenformer/bench-150m",
}
CONNECTIONS = {
    "static hyper": "PerSublayer(Hyper(n: 4, dynamic: false, norm: Scale))",
    "hyper": "PerSublayer(Hyper(n: 4, norm: Scale))",
    "mhc": "PerSublayer(Mhc(n: 4))",
    "attention residual in blocks": "PerSublayer(AttentionResidual(block: 4))",
}
GPT2 = "Gpt2(n_layer: 12, n_head: 12, width: 768, context: 1024)"
# With --try, these small models replace the models of FILES.
TINY = {
    "gpt2": "Gpt2(n_layer: 2, n_head: 2, width: 32, context: 64)",
    "rmt": "Rmt(n_layer: 2, d_k: 8, d_v: 8, rank: 4, context: 64)",
    "laurel": "Composed(layers: [Gpt2(n_layer: 2, n_head: 2, width: 32, context: 64)], connection: PerLayer(Laurel()))",
    "tokenformer": "TokenFormer(n_layer: 2, n_head: 2, width: 32, context: 64)",
}


class Machine:
    def __init__(self, args):
        self.args, self.out = args, args.out
        self.device = "cpu" if args.tiny else "cuda"
        self.zoo_device = ["--cpu"] if args.tiny else []
        self.ids = 300 if args.tiny else 50257
        self.answers = (args.out / "answers.jsonl").open("a")
        self.failed = []
        lib = Path(torch.__file__).parent / "lib"
        self.env = os.environ | {"LD_LIBRARY_PATH": f"{lib}:{os.environ.get('LD_LIBRARY_PATH', '')}"}

    def program(self, path):
        """Returns the path of a program, and decompresses the program first if necessary."""
        if path is None or path.suffix != ".xz":
            return path
        place = self.out.resolve() / path.stem
        if not place.exists():
            place.write_bytes(lzma.open(path).read())
            place.chmod(0o755)
        return place

    def run(self, question, name, limit, words, env=(), read=None, kill=None):
        """Runs a command for at most `limit` seconds, writes its answer and returns it. `read` gets the path of the
        command's JSON file and the text that the command printed, and returns fields of the answer. The command is
        killed as soon as `kill` returns true."""
        if self.args.tiny:
            # Short limits save GPU time. A CPU may be slow, so it gets longer limits.
            limit = max(limit, 600)
        path = self.out / f"{question}-{name.replace(' ', '-').replace('/', '-')}"
        words = [str(word).replace("{json}", str(path.with_suffix(".json"))) for word in words]
        # If the command fails, the figures of an earlier command must not be read.
        path.with_suffix(".json").unlink(missing_ok=True)
        start = time.monotonic()
        with path.with_suffix(".log").open("w") as log:
            child = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, env=self.env | dict(env), start_new_session=True
            )
            while child.poll() is None and time.monotonic() - start < limit and not (kill and kill()):
                time.sleep(0.02)
            status = child.poll()
            if status is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                status = "killed" if kill and kill() else "too long"
        answer = {"question": question, "name": name, "status": status, "seconds": round(time.monotonic() - start, 1)}
        log = path.with_suffix(".log").read_text(errors="replace")
        try:
            answer |= (read or read_json)(path.with_suffix(".json"), log)
        except (OSError, ValueError, KeyError, IndexError) as error:
            answer["unread"] = str(error)
        if status not in (0, "killed"):
            answer["end"] = log[-600:]
            self.failed.append(f"{question} {name}")
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()
        hidden = ("question", "name", "end", "kernels")
        shown = {key: value for key, value in answer.items() if key not in hidden}
        shown = [f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in shown.items()]
        print(question, *shown, name, sep="  ", flush=True)
        if status not in (0, "killed"):
            print("   ", log[-300:].replace("\n", "\n    "), flush=True)
        return answer

    def torch_step(self, question, name, limit, *options, ids=None):
        sizes = {"layers": 12, "heads": 12, "width": 768, "time": 1024, "batch": 8}
        if self.args.tiny:
            sizes = {"layers": 2, "heads": 2, "width": 32, "time": 64, "batch": 2}
        words = [sys.executable, ROOT / "benches/pytorch_step.py", "--vocabulary", ids or self.ids, "--bias"]
        for field, value in sizes.items():
            words += [f"--{field}", value]
        words += ["--device", self.device, "--warmup", 3, "--steps", 10, "--json", "{json}", *options]
        return self.run(question, name, limit, words)

    def zoo_step(self, question, limit, model, precision, *fields, name=None, backend="tch", env=(), read=None):
        program = self.args.cuda if backend == "cuda" else self.args.tch
        file = FILES.get(model, FILES["gpt2"])
        if model in CONNECTIONS:
            layers = TINY["gpt2"] if self.args.tiny else GPT2
            fields = [*fields, f"model=Composed(layers: [{layers}], connection: {CONNECTIONS[model]})"]
        elif self.args.tiny:
            fields = [*fields, f"model={TINY[model]}"]
        used = precision
        if self.args.tiny:
            # A CPU has no TF32, so the program computes in f32.
            used = "F32" if precision == "Tf32" else precision
            fields = [*fields, "train.batch=2"]
        words = [program, "bench", f"experiments/{file}.ron", "--backend", backend, *self.zoo_device]
        words += ["--warmup", 3, "--steps", 10, "--json", "{json}"]
        for field in [*self.text(), f"train.precision={used}", *fields]:
            words += ["--set", field]
        return self.run(question, f"{name or model}, {precision}", limit, words, env, read)

    def text(self):
        """Writes a random text of `ids` different characters, each one a token. Returns the fields of a run file that
        select this text."""
        path = self.out / "ids.txt"
        if not path.exists():
            letters = [chr(0x10000 + i) for i in range(self.ids)]
            path.write_text("".join(letters + random.Random(1).choices(letters, k=500_000)))
        return [f'data.source=Path("{path}")', "data.tokenizer=Chars", f'data.cache="{self.out / "tokens"}"']


def read_json(path, _):
    found = json.loads(path.read_text())
    found = found[0] if isinstance(found, list) else found
    found["memory"] = found.get("memory") or found.get("peak_memory")
    keys = ("step", "fastest", "slowest", "forward", "backward", "optimizer", "data", "memory", "flops_per_second")
    return {key: found[key] for key in keys if found.get(key) is not None}


def gpt2(m):
    """Times a step of GPT-2 124M, 8 x 1024 tokens, alternately in PyTorch and in the zoo. Tensor cores are fast if each
    row is a multiple of 16 bytes long, so the zoo pads 50,257 columns to 50,304. PyTorch is measured with both
    sizes."""
    padded = -(-m.ids // 64) * 64
    for _ in range(1 if m.args.tiny else 3):
        for precision, options in {"Bf16": ["bf16"], "Tf32": ["fused", "--tf32"], "F32": ["fused"]}.items():
            m.torch_step("gpt2", f"PyTorch, {precision}", 60, "--form", *options)
            m.torch_step("gpt2", f"PyTorch with {padded} ids, {precision}", 60, "--form", *options, ids=padded)
            m.zoo_step("gpt2", 60, "gpt2", precision, name="zoo")


def compiled(m):
    """Times the step of `gpt2` in PyTorch with `torch.compile`."""
    for precision, options in (("Bf16", ["--form", "bf16"]), ("Tf32", ["--form", "fused", "--tf32"])):
        m.torch_step("compiled", f"PyTorch compiled, {precision}", 120, "--compile", *options)


def profile(m):
    """Lists the kernels that take the most time in a step in bf16."""
    for model in [*FILES, *CONNECTIONS]:
        trace = m.out / f"trace-{model.replace(' ', '-')}.json"
        m.zoo_step(
            "profile", 60, model, "Bf16",
            env={"RESIDUAL_ZOO_PROFILE": str(trace)},
            read=lambda path, log: read_json(path, log) | kernels(trace),
        )


def kernels(trace):
    """Returns the launches and milliseconds of the 40 longest kernels of a trace, the longest first, with the span and
    the busy time. Deletes the trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    on_gpu = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kind = on_gpu or [e for e in events if e.get("cat") == "cpu_op"]
    total = {}
    for event in kind:
        count, time = total.get(event["name"][:150], (0, 0.0))
        total[event["name"][:150]] = (count + 1, time + event["dur"] / 1e3)
    longest = sorted(total.items(), key=lambda item: -item[1][1])[:40]
    first = min((e["ts"] for e in kind), default=0)
    last = max((e["ts"] + e["dur"] for e in kind), default=0)
    busy = sum(e["dur"] for e in kind)
    trace.unlink()
    return {
        "span_ms": (last - first) / 1e3,
        "busy_ms": busy / 1e3,
        "launches": len(kind),
        "kernels": [[name, count, round(time, 3)] for name, (count, time) in longest],
    }


def large(m):
    """Times a step of GPT-2 124M with 32 x 1024 tokens in bf16."""
    batch = [] if m.args.tiny else ["--batch", 32]
    m.torch_step("large", "PyTorch, Bf16", 60, "--form", "bf16", *batch)
    m.zoo_step("large", 60, "gpt2", "Bf16", *([] if m.args.tiny else ["train.batch=32"]), name="zoo")


def models(m):
    """Times a step of every architecture and connection at 124M to 150M parameters, to compare with the zoo's GPT-2."""
    for precision in ("Tf32", "Bf16"):
        for model in [*FILES, *CONNECTIONS]:
            m.zoo_step("models", 60, model, precision)


def references(m):
    """Checks the reference cases in f32, parity with Flex, and the error bound of bf16."""
    if m.args.tests is None:
        print("references: left out, because --tests is not given")
        return
    check(m, "references", m.args.tests, "tch")


def check(m, question, program, backend):
    """Runs the tests in `program` on one backend."""
    env = {"ZOO_BACKENDS": backend, "RUST_BACKTRACE": "0"}

    def results(_, log):
        return {"passed": log.count("... ok"), "failed": log.count("... FAILED")}

    words = [program, "--nocapture", "--test-threads", "8"]
    if not m.run(question, "all", 300, words, env, results).get("passed"):
        m.failed.append(f"{question}: no test ran")


def repeats(m):
    """Trains twice for 300 steps and compares the results. With deterministic kernels, also kills and resumes a run,
    and requires all results to be equal."""
    if m.args.data is None:
        print("repeats: left out, because --data is not given")
        return
    size = ["model.n_layer=2", "model.context=64", "train.batch=4"] if m.args.tiny else []
    steps = 30 if m.args.tiny else 300

    def train(name, resume=False, kill=None, fields=()):
        run = m.out / f"run-{name.replace(' ', '-')}"
        words = [m.args.tch, "train", "--backend", "tch", *m.zoo_device, "--no-tui"]
        if resume:
            words += ["--resume", run]
        else:
            # A finished run would not be trained again, so it is deleted.
            shutil.rmtree(run, ignore_errors=True)
            words += ["gpt2/shakespeare-cpu", "--data", m.args.data, "--run", run]
            common = [f"train.steps={steps}", f"train.validate_every={steps // 3}", "train.log_every=10"]
            for field in [*common, *size, *fields]:
                words += ["--set", field]
        killed = kill and (lambda: reached(run, kill))
        answer = m.run("repeats", name + " resumed" * resume, 60, words, read=lambda *_: last_rows(run), kill=killed)
        if kill and (answer["status"] != "killed" or answer.get("step", steps) >= steps):
            m.failed.append(f"repeats {name}: it ended before it was killed")
        return {key: answer.get(key) for key in ("step", "train_loss", "grad_norm", "valid_loss")}

    for name, fields in {
        "plain": [],
        "deterministic": ["train.deterministic=true"],
        "deterministic Bf16": ["train.deterministic=true", "train.precision=Bf16"],
    }.items():
        first = train(f"{name} first", fields=fields)
        ends = {"second": train(f"{name} second", fields=fields)}
        if fields:
            train(f"{name} killed", fields=fields, kill=steps // 2)
            ends["killed and resumed"] = train(f"{name} killed", resume=True)
        for what, end in ends.items():
            print(f"repeats  {name}: {what} {'equals' if end == first else 'DIFFERS FROM'} the first", flush=True)
            if fields and end != first:
                m.failed.append(f"repeats {name}: {what} differs")


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def reached(run, step):
    try:
        return rows(run)[-1]["step"] >= step
    except (OSError, ValueError, IndexError):
        return False


def last_rows(run):
    """Returns the last measurements of a run, in full precision."""
    trained = [row for row in rows(run) if "train_loss" in row][-1]
    validated = [row for row in rows(run) if "valid_loss" in row][-1]
    return {
        "step": trained["step"],
        **{key: repr(trained[key]) for key in ("train_loss", "grad_norm")},
        "valid_loss": repr(validated["valid_loss"]),
    }


def cuda(m):
    """Times a step of GPT-2 124M and of the RMT on Burn's own CUDA backend, with the zoo's kernels and with the plain
    forms. Then compares the kernels with their plain forms and with the reference cases. Also times the kernels for
    matrix products and all other kernels."""
    if m.args.cuda is None:
        print("cuda: left out, because --cuda is not given")
    else:
        for precision in ("Tf32", "Bf16"):
            m.zoo_step("cuda", 120, "gpt2", precision, backend="cuda")
            m.zoo_step("cuda", 120, "rmt", precision, backend="cuda")
            plain = {"RESIDUAL_ZOO_OPS": "plain"}
            m.zoo_step("cuda", 120, "gpt2", precision, name="gpt2, plain forms", backend="cuda", env=plain)
        m.zoo_step("cuda", 120, "gpt2", "F32", backend="cuda")
        # CubeCL reads this file from the working directory of its process.
        file = ROOT / "cubecl.toml"
        if file.exists():
            print(f"a buffer for each size: left out, because {file} exists")
        else:
            file.write_text('[memory]\npersistent_memory = "enforced"\n')
            try:
                m.zoo_step("cuda", 120, "gpt2", "Tf32", name="gpt2, a buffer for each size", backend="cuda")
            finally:
                file.unlink()
    if m.args.cuda_tests is None:
        print("cuda tests: left out, because --cuda-tests is not given")
    else:
        check(m, "cuda", m.args.cuda_tests, "cuda")
    if m.args.cuda_ops is None:
        print("cuda operations: left out, because --cuda-ops is not given")
    else:
        short = ["--warm-up-time", "0.1", "--measurement-time", "0.3"]
        m.run("cuda", "products", 200, [m.args.cuda_ops, "--bench", *short, "products"])
        m.run("cuda", "operations", 300, [m.args.cuda_ops, "--bench"])


# The programs that may be left out.
PROGRAMS = ("cuda", "cuda_tests", "cuda_ops", "tests")
QUESTIONS = {f.__name__: f for f in (gpt2, references, models, compiled, profile, large, repeats, cuda)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tch", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--cuda", type=Path, metavar="PROGRAM")
    parser.add_argument("--cuda-tests", type=Path, metavar="TESTS")
    parser.add_argument("--cuda-ops", type=Path, metavar="OPS")
    parser.add_argument("--tests", type=Path, metavar="TESTS")
    parser.add_argument("--data", type=Path, help="a text for the training runs", metavar="TEXT")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(QUESTIONS), help=f"some of: {','.join(QUESTIONS)}")
    parser.add_argument("--try", dest="tiny", action="store_true", help="tiny sizes on a CPU")
    args = parser.parse_args()
    names = [name.strip() for name in args.only.split(",")]
    for path in (args.tch, *(getattr(args, name) for name in PROGRAMS), args.data):
        if path is not None and not path.is_file():
            parser.error(f"{path} is not a file")
    # A name without a folder would be searched for on PATH, so paths become absolute.
    for name in ("tch", *PROGRAMS):
        path = getattr(args, name)
        setattr(args, name, path and path.resolve())
    for name in names:
        if name not in QUESTIONS:
            parser.error(f"there is no question {name!r}; choose from: {', '.join(QUESTIONS)}")
    if not args.tiny and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU; --try runs the questions at tiny sizes on the CPU")
    args.out.mkdir(parents=True, exist_ok=True)
    machine = Machine(args)
    for name in ("tch", *PROGRAMS):
        setattr(args, name, machine.program(getattr(args, name)))
    args.data = args.data and args.data.resolve()
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    machine.answers.write(json.dumps({"question": "machine", "card": card, "torch": torch.__version__}) + "\n")
    print(card, torch.__version__, flush=True)
    for name in names:
        start = time.monotonic()
        QUESTIONS[name](machine)
        print(f"-- {name}: {time.monotonic() - start:.0f} s", flush=True)
    if machine.failed:
        sys.exit(f"failed: {'; '.join(machine.failed)}")


if __name__ == "__main__":
    main()
