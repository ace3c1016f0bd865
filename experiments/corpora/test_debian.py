"""Tests of debian.py, on a package that they make."""

import contextlib
import io
import lzma
import pathlib
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import debian  # noqa: E402

LICENCE = "// SPDX-License-Identifier: GPL-2.0\n/*\n * Copyright (C) 2020 Nobody\n */\n\n"
TABLE = "".join(f"\t{{ 0x{i:04x}, {i} }},\t/* row */\n" for i in range(20))
SHARED = "\tdev_err(dev, \"no memory for the buffer of the device\\n\");\n"


def archive(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return lzma.compress(out.getvalue())


def package(path, files):
    """Writes a .deb whose data are an archive of the files, as in linux-source."""
    inner = archive({f"source-1/{name}": text.encode("latin-1") for name, text in files.items()})
    members = {"debian-binary": b"2.0\n", "data.tar.xz": archive({"./usr/src/source-1.tar.xz": inner})}
    with open(path, "wb") as file:
        file.write(b"!<arch>\n")
        for name, content in members.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content)
            file.write(b"\n" * (len(content) % 2))


def files():
    made = {}
    for i in range(60):
        body = f"int f_{i}(void)\n{{\n{SHARED}\treturn 0;\n}}\n\n/* the only sentence of its kind is number {i} */\n"
        made[f"drivers/d{i}/{i}.c"] = LICENCE + "#include <a.h>\n" + TABLE + body
    made["drivers/d1/copy.c"] = made["drivers/d2/2.c"]
    made["drivers/d1/latin.c"] = "int caf\xe9;\n"
    made["drivers/d1/picture.png"] = "not a text"
    return made


class Debian(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.deb = f"{self.directory.name}/a.deb"
        package(self.deb, files())

    def run_it(self, *options):
        out, printed = f"{self.directory.name}/out.txt", io.StringIO()
        sys.argv = ["debian.py", self.deb, "--out", out, *options]
        with contextlib.redirect_stdout(printed):
            debian.main()
        lines = printed.getvalue().splitlines()
        values = dict(line.split("  ", 1) if "  " in line else line.split("=") for line in lines)
        content = pathlib.Path(out).read_bytes()
        # As the program cuts: crates/data/src/tokenize.rs.
        cut = int(len(content) * (1 - float(values["data.valid_fraction"])))
        return values, content[:cut].decode(), content[cut:].decode()

    def test_the_same_package_gives_the_same_text(self):
        self.assertEqual(self.run_it(), self.run_it())
        values, _, _ = self.run_it()
        self.assertNotEqual(values["sha256"], self.run_it("--share", "0.5")[0]["sha256"])

    def test_no_long_line_of_the_validation_part_is_in_training(self):
        _, train, valid = self.run_it()
        long = [{"".join(line.split()) for line in part.split("\n") if debian.long(line)} for part in (train, valid)]
        self.assertTrue(all(long))
        self.assertEqual(long[0] & long[1], set())
        self.assertNotIn(SHARED, train + valid)
        self.assertIn("return 0;", train)
        self.assertIn("return 0;", valid)

    def test_whole_directories_are_held_out(self):
        _, train, valid = self.run_it("--valid", "0.3")
        for i in range(60):
            name = f"int f_{i}(void)"
            self.assertEqual((name in train) + (name in valid), 1, name)

    def test_licences_tables_copies_and_other_files_are_left_out(self):
        values, train, valid = self.run_it()
        text = train + valid
        for absent in ("SPDX", "Copyright", "0x0003", "not a text", "caf"):
            self.assertNotIn(absent, text)
        self.assertIn("#include <a.h>", text)
        self.assertIn("1 (not UTF-8), 1 (duplicate)", values["left out"])

    def test_files_that_cannot_be_used_are_errors(self):
        whole = pathlib.Path(self.deb).read_bytes()
        for content, says in (
            (b"text", "is not a Debian package"),
            (b"!<arch>\n", "no data.tar"),
            (b"!<arch>\n" + b"?" * 60, "no data.tar"),
            (whole[: len(whole) // 2], "cannot be read.*again"),
        ):
            pathlib.Path(self.deb).write_bytes(content)
            with self.assertRaisesRegex(SystemExit, says):
                self.run_it()
        pathlib.Path(self.deb).unlink()
        with self.assertRaisesRegex(SystemExit, "No such file"):
            self.run_it()
        package(self.deb, {"drivers/d1/picture.png": "not a text"})
        with self.assertRaisesRegex(SystemExit, "no files that end in .c"):
            self.run_it()

    def test_the_printed_fraction_cuts_between_two_files(self):
        values, train, valid = self.run_it()
        counts = [int(word.replace(",", "")) for word in values["bytes"].split() if word[0].isdigit()]
        self.assertEqual(len((train + valid).encode()), sum(counts))
        self.assertLessEqual(abs(len(train.encode()) - counts[0]), 1)
        self.assertTrue(train.endswith("\n"))

    def test_short_tables_stay(self):
        self.assertEqual(debian.cleaned("int a[] = {\n1, 2,\n3,\n};"), "int a[] = {\n1, 2,\n3,\n};")
        self.assertEqual(debian.cleaned("/* Adds. */\nint add;"), "/* Adds. */\nint add;")


if __name__ == "__main__":
    unittest.main()
