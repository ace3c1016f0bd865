#!/usr/bin/env python3
"""Makes Markdown tables of the answers of ask.py.

    python benches/gpu/tables.py OUT [OUT…]

Of a command that was run several times, the last answer counts. Ratios are to PyTorch's step in the same precision, if
it was measured, and to the zoo's GPT-2.
"""

import json
import sys
from pathlib import Path

GIB = 1 << 30


def read(folders):
    """The answers by question and name, and the cards."""
    answers, cards = {}, []
    for folder in folders:
        path = Path(folder) / "answers.jsonl"
        if not path.is_file():
            sys.exit(f"{path} does not exist; give the folder that ask.py wrote (--out)")
        for line in path.read_text().splitlines():
            answer = json.loads(line)
            if answer["question"] == "machine":
                cards.append(f"{answer['card']}, PyTorch {answer['torch']}")
            else:
                answers[answer["question"], answer["name"]] = answer
    return answers, list(dict.fromkeys(cards))


def precision(name):
    return name.rsplit(", ")[-1]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    answers, cards = read(sys.argv[1:])
    print("; ".join(cards))
    steps = {key: a["step"] for key, a in answers.items() if isinstance(a.get("step"), float)}
    ours = {precision(name): step for (question, name), step in steps.items()
            if question in ("gpt2", "models") and name.startswith("gpt2,")}
    theirs = {precision(name): step for (question, name), step in steps.items() if question == "pytorch"}

    def ratio(step, to):
        return f"{step / to:.2f}" if to else "–"

    print("\n| question | what | step, ms | to PyTorch | to GPT-2 | memory, GiB |\n|---|---|---|---|---|---|")
    for (question, name), step in steps.items():
        memory = answers[question, name].get("memory")
        memory = f"{memory / GIB:.1f}" if memory else "–"
        of = precision(name)
        same = question in ("pytorch", "gpt2", "models")
        to_pytorch, to_ours = (ratio(step, found.get(of) if same else None) for found in (theirs, ours))
        print(f"| {question} | {name} | {1e3 * step:.1f} | {to_pytorch} | {to_ours} | {memory} |")
    rest = {key: a for key, a in answers.items() if key not in steps}
    if rest:
        print("\n| question | what | status | result |\n|---|---|---|---|")
    for (question, name), answer in rest.items():
        hidden = {"question", "name", "status", "seconds", "end", "kernels", "unread"}
        result = ", ".join(f"{key} {value}" for key, value in answer.items() if key not in hidden)
        print(f"| {question} | {name} | {answer['status']} | {result or answer.get('unread', '')} |")


if __name__ == "__main__":
    main()
