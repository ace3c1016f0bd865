#!/usr/bin/env python3
"""Makes Markdown tables from the answers of ask.py.

    python benches/gpu/tables.py OUT [OUT…]

A step time is the median over the rounds of a command, with the range. Each step time is divided by PyTorch's step time
for GPT-2 at the same precision, and by the zoo's step time for GPT-2. Within the question `gpt2`, a ratio is the median
of the rounds' ratios, with the range, if both commands have the same number of rounds. Otherwise, it is the ratio of
the medians.
"""

import json
import sys
from pathlib import Path
from statistics import median

GIB = 1 << 30


def read(folders):
    """Returns the answers of all rounds by question and name, and the GPUs with their PyTorch versions."""
    answers, cards = {}, []
    for folder in folders:
        path = Path(folder) / "answers.jsonl"
        if not path.is_file():
            sys.exit(f"{path} does not exist; give the folder that ask.py wrote (--out)")
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            try:
                answer = json.loads(line)
                key = answer["question"], answer.get("name")
                card = f"{answer['card']}, PyTorch {answer['torch']}" if key[0] == "machine" else None
            except (ValueError, KeyError, TypeError):
                print(f"{path}: line {number} is not an answer of ask.py and is left out", file=sys.stderr)
                continue
            if card:
                cards.append(card)
            else:
                answers.setdefault((answer["question"], answer["name"]), []).append(answer)
    return answers, list(dict.fromkeys(cards))


def precision(name):
    return name.rsplit(", ")[-1]


def shown(values, digits):
    """Formats the median, and the range if there are several values."""
    middle = f"{median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    answers, cards = read(sys.argv[1:])
    print("; ".join(cards))
    # A command that failed has no step time.
    good = {key: [a["step"] for a in rounds if a.get("status") == 0] if key[0] != "repeats" else []
            for key, rounds in ((key, [a for a in rounds if a.get("step")]) for key, rounds in answers.items())}
    steps = {key: [step for step in rounds if step > 0] for key, rounds in good.items()}
    steps = {key: rounds for key, rounds in steps.items() if rounds}

    def ratio(rounds, question, name):
        to = steps.get(("gpt2", f"{name}, {of}")) if question in ("gpt2", "models") else None
        if not to:
            return "–"
        if question == "gpt2" and len(to) == len(rounds):
            return shown([a / b for a, b in zip(rounds, to)], 2)
        return f"{median(rounds) / median(to):.2f}"

    print("\n| question | what | rounds | step, ms | to PyTorch | to GPT-2 | memory, GiB |\n|---|---|---|---|---|---|---|")
    for (question, name), rounds in steps.items():
        memory = answers[question, name][-1].get("memory")
        memory = f"{memory / GIB:.1f}" if memory else "–"
        of = precision(name)
        ratios = [ratio(rounds, question, other) for other in ("PyTorch", "zoo")]
        cells = [question, name, len(rounds), shown([1e3 * step for step in rounds], 1), *ratios, memory]
        print("|", " | ".join(map(str, cells)), "|")
    rest = {key: rounds[-1] for key, rounds in answers.items() if key not in steps}
    if rest:
        print("\n| question | what | status | result |\n|---|---|---|---|")
    for (question, name), answer in rest.items():
        hidden = {"question", "name", "status", "seconds", "end", "kernels", "unread"}
        result = ", ".join(f"{key} {value}" for key, value in answer.items() if key not in hidden)
        print(f"| {question} | {name} | {answer['status']} | {result or answer.get('unread', '')} |")


if __name__ == "__main__":
    main()
