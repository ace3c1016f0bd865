#!/usr/bin/env python3
"""The articles of a text file of WikiText, without characters that a training text lacks.

    seen.py TRAINING WIKITEXT > OUT.jsonl

A character that training never showed has a probability that nothing was learned about, and `<unk>` alone would be a
tenth of the bits. OUT has a JSON object with the field `page` for each article, as the task `wikitext` reads it.
"""

import json
import re
import sys


def main(training, wikitext):
    seen = set(open(training, encoding="utf-8").read())
    text = open(wikitext, encoding="utf-8").read()
    # An article begins with a heading `= Title =`; those within it have more signs.
    for page in re.split(r"(?m)^(?= = [^=\n]+ = $)", text):
        page = "".join(c for c in page if c in seen)
        if page.strip():
            print(json.dumps({"page": page}))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
