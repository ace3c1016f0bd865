#!/usr/bin/env python3
"""Makes a text to train on from a Debian package with source code or documentation.

    apt-get download linux-source-6.1
    debian.py linux-source-6.1_*.deb --share 0.2 --out linux.txt

The text has the package's source files and prose, one after another in the order of their paths: first the files for
training, then those for validation. The files for validation are whole directories, about a tenth, chosen by a hash of
the directory's name. The last line printed is the fraction for `data.valid_fraction`, at which training ends.

The script leaves out licence headers, tables of numbers, files that occur twice, and files that are not UTF-8. It
removes long lines that occur in both parts from both, so no such line of the validation part was trained on. Short
lines, such as `return 0;`, stay.

The same package and options give the same file on every machine. Needs Python 3.9 and no other package.
"""

import argparse
import hashlib
import io
import lzma
import re
import sys
import tarfile
import zlib

TEXTS = (".c", ".h", ".rst", ".txt", ".md", ".py", ".rs", "Kconfig")
# The number of directories in a path that are held out or trained on as a whole, such as drivers/net/wireless.
DEPTH = 3
# A line with at least this many characters, without its spaces, must not occur in both parts.
LONG = 24
# At least this many lines of numbers in a row are a table.
TABLE = 8
# What may stand before and after the numbers of a line: a name that is defined or indexed, and a comment.
BEFORE = re.compile(r"\s*(#\s*define\s+\w+|\[\w+\]\s*=)\s")
COMMENT = re.compile(r"/\*.*\*/|//.*")
NUMBER = re.compile(r"0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*")
LICENCE = re.compile(r"SPDX|Copyright|\(c\)|GNU General Public|GPL|Redistribution|WITHOUT WARRANT|Licen[cs]e", re.I)
FILE_END = "\n\n"


def members(package):
    """Yields (name, bytes) of the regular files in a .deb, and in the archives within it."""
    with open(package, "rb") as file:
        if file.read(8) != b"!<arch>\n":
            sys.exit(f"error: {package} is not a Debian package (.deb)")
        while header := file.read(60):
            try:
                name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
            except ValueError:
                break
            if name.startswith("data.tar"):
                yield from regular(io.BytesIO(file.read(size)), package)
                return
            file.seek(size + size % 2, 1)
    sys.exit(f"error: {package} has no data.tar; the package is damaged")


def regular(stream, where):
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for entry in archive:
                if not entry.isfile():
                    continue
                content = archive.extractfile(entry)
                if re.search(r"\.tar(\.\w+)?$", entry.name):
                    yield from regular(content, entry.name)
                elif entry.name.endswith(TEXTS):
                    yield entry.name, content.read()
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as problem:
        sys.exit(f"error: {where} cannot be read: {problem}; download the package again")


def is_numbers(line):
    if not any(digit in line for digit in "0123456789"):
        return False
    words = re.findall(r"\w+", COMMENT.sub("", BEFORE.sub("", line)))
    return bool(words) and all(NUMBER.fullmatch(word) for word in words)


def cleaned(text):
    """Removes the licence at the beginning, and tables of numbers."""
    lines = text.replace("\r\n", "\n").replace("\f", "\n").rstrip().split("\n")
    # Comments, in any of the languages, that come before everything else.
    body = 0
    in_comment = False
    for i, line in enumerate(lines):
        line = line.strip()
        in_comment = in_comment or line.startswith("/*")
        if not (in_comment or not line or re.match(r"//|#(?!\s*(include|if|define|undef|pragma))|\.\. |;", line)):
            break
        if in_comment and "*/" in line:
            in_comment = False
        body = i + 1
    head = "\n".join(lines[:body])
    if LICENCE.search(head):
        lines = lines[body:]
    out, table = [], []
    for line in lines + [""]:
        if is_numbers(line):
            table.append(line)
            continue
        out += table if len(table) < TABLE else []
        table = []
        out.append(line.rstrip())
    return "\n".join(out).strip()


def chance(text):
    """A number from 0 to 1 that depends on the text only."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def directory(name):
    # Without the path of the package's archive, such as linux-source-6.1.
    return "/".join(name.split("/")[:-1][1 : 1 + DEPTH])


def long(line):
    return len("".join(line.split())) >= LONG


def split(package, share, valid):
    """Returns the texts for training and for validation, and the number of files left out, by reason."""
    parts, seen, left_out = ({}, {}), set(), dict.fromkeys(["not UTF-8", "duplicate", "table or licence only"], 0)
    for name, content in members(package):
        name = name.removeprefix("./")
        if chance("share " + name) >= share:
            continue
        try:
            text = cleaned(content.decode("utf-8"))
        except UnicodeDecodeError:
            left_out["not UTF-8"] += 1
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if not text:
            left_out["table or licence only"] += 1
        elif digest in seen:
            left_out["duplicate"] += 1
        else:
            seen.add(digest)
            parts[chance("valid " + directory(name)) < valid][name] = text
    return parts, left_out


def without_shared(parts):
    """Removes long lines that occur in both parts."""
    lines = [{hash_of(line) for text in part.values() for line in text.split("\n") if long(line)} for part in parts]
    shared = lines[0] & lines[1]

    def kept(text):
        return "\n".join(line for line in text.split("\n") if not (long(line) and hash_of(line) in shared))

    return [[kept(part[name]) for name in sorted(part)] for part in parts], len(shared)


def hash_of(line):
    # Lines that differ in their spaces only count as equal.
    return hashlib.blake2b("".join(line.split()).encode(), digest_size=12).digest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="the .deb, from `apt-get download NAME`")
    parser.add_argument("--out", required=True, help="the text file to write")
    parser.add_argument("--share", type=float, default=1.0, help="the share of the files, from 0 to 1 [default: 1]")
    parser.add_argument("--valid", type=float, default=0.1, help="the share of directories held out [default: 0.1]")
    options = parser.parse_args()
    for name in ("share", "valid"):
        if not 0 < getattr(options, name) <= 1:
            sys.exit(f"error: --{name} is {getattr(options, name)}; it must be above 0 and at most 1")
    try:
        parts, left_out = split(options.package, options.share, options.valid)
    except OSError as problem:
        sys.exit(f"error: {problem}")
    if not any(parts):
        sys.exit(f"error: {options.package} has no files that end in {', '.join(TEXTS)}, or --share is too small")
    if not all(parts):
        sys.exit("error: one part has no files; take a larger --share or another --valid")
    (train, valid), shared = without_shared(parts)
    train, valid = ("".join(text + FILE_END for text in part if text).encode() for part in (train, valid))
    try:
        with open(options.out, "wb") as file:
            file.write(train + valid)
    except OSError as problem:
        sys.exit(f"error: {problem}")
    package = options.package.rsplit("/", 1)[-1]
    print(f"package             {package}")
    print(f"files               {len(parts[0]):,} for training, {len(parts[1]):,} for validation")
    print("left out            " + ", ".join(f"{count:,} ({reason})" for reason, count in left_out.items()))
    print(f"lines in both       {shared:,}, removed from both")
    print(f"bytes               {len(train):,} for training, {len(valid):,} for validation")
    print(f"sha256              {hashlib.sha256(train + valid).hexdigest()}")
    # The program cuts after the whole number of bytes below bytes × (1 − fraction).
    print(f"data.valid_fraction={len(valid) / len(train + valid):.17g}")


if __name__ == "__main__":
    main()
