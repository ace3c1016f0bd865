"""A preprocessor of mdBook: links to files outside of docs/ lead to the repository."""

import json
import posixpath
import re
import sys

REPOSITORY = "https://github.com/residual-zoo/residual-zoo/blob/main/"


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    for item in book["items"]:
        rewrite(item)
    json.dump(book, sys.stdout)


def rewrite(item):
    chapter = item.get("Chapter") if isinstance(item, dict) else None
    if not chapter:
        return
    here = posixpath.dirname(chapter["path"] or "")

    def link(match):
        path = posixpath.normpath(posixpath.join("docs", here, match[1]))
        if not path.startswith("docs/"):
            return f"]({REPOSITORY}{path}"
        # mdBook calls a README index.html.
        return re.sub(r"\bREADME\.md$", "index.md", match[0])

    chapter["content"] = re.sub(r"\]\((?![a-z]+:|#)([^)#\s]+)", link, chapter["content"])
    for inner in chapter["sub_items"]:
        rewrite(inner)


if __name__ == "__main__":
    main()
