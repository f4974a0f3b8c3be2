#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare ids with the `tokenizers` library on 20 MB or more of mixed text.

    python3 tests/parity/tokenizers_parity.py --bench build/bench/bench-tokenize \\
        [--text FILE]... [--megabytes 20] TOKENIZER_FOLDER_OR_JSON...

The text is made from a seed: prose (the files given, or words), code (Python's own library), CJK,
emoji, combining marks, Hangul in pieces, every assigned block, digits, contractions, long runs of
spaces and line feeds, the tokenizer's own added tokens, and bytes that are not UTF-8. The library
gets it as Python decodes it (errors="replace"), one block after the other, because it needs minutes
for a text of 20 MB in one piece; a block is a file of its own for us too.

--assigned leaves out code points that this Python's Unicode does not know (14 in Python 3.11, as in
Debian 12's PCRE2): under a pattern of its own, which goes to PCRE2, a letter of a later Unicode is
none for us.
"""
import argparse
import glob
import os
import random
import struct
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata

from tokenizers import Tokenizer

WORDS = "the of and to in a is that it was don't I'm you're we've they'd he'll IT'S x1 foo_bar".split()


def prose(rng, size, files):
    out = []
    if files:
        for name in files:
            with open(name, "rb") as f:
                out.append(f.read())
        text = b"\n".join(out)
        start = rng.randrange(max(1, len(text) - size))
        return text[start:start + size]
    while sum(map(len, out)) < size:
        out.append((" ".join(rng.choice(WORDS) for _ in range(12)) + ".\n").encode())
    return b"".join(out)


def code(rng, size):
    names = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py")))
    out = b""
    while len(out) < size:
        with open(rng.choice(names), "rb") as f:
            out += f.read()
    return out[:size]


RANGES = {
    "cjk": [(0x4E00, 0x9FFF), (0x3040, 0x30FF), (0x3000, 0x303F), (0xFF00, 0xFFEF), (0x20, 0x22)],
    "hangul": [(0x1100, 0x11FF), (0xAC00, 0xD7A3), (0x20, 0x20)],
    "emoji": [(0x1F300, 0x1FAFF), (0x200D, 0x200D), (0xFE0F, 0xFE0F), (0x1F1E6, 0x1F1FF),
              (0x20, 0x20)],
    "marks": [(0x61, 0x7A), (0x300, 0x36F), (0x41, 0x5A), (0xC0, 0x17F), (0x1DC0, 0x1DFF),
              (0x20, 0x20), (0x5B0, 0x5C7), (0x3099, 0x309A), (0x304B, 0x3050), (0x1E00, 0x1EFF)],
    "latin": [(0x20, 0x7E), (0xA0, 0x24F)],
    "indic": [(0x900, 0xDFF), (0x20, 0x20)],
    "space": [(9, 13), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x2000, 0x200B), (0x2028, 0x2029),
              (0x3000, 0x3000), (0x61, 0x63), (0x180E, 0x180E), (0x30, 0x32), (0x2E, 0x2E)],
    "any": [(0, 0x33FF), (0xA000, 0xABFF), (0xF900, 0xFFFD), (0x10000, 0x1FFFF), (0x20000, 0x20FFF)],
}


def characters(rng, size, name):
    ranges, out, count = RANGES[name], [], 0
    while count < size:
        low, high = rng.choice(ranges)
        run = rng.randint(1, 6)
        part = "".join(chr(c) for c in (rng.randint(low, high) for _ in range(run))
                       if not 0xD800 <= c < 0xE000).encode()
        out.append(part)
        count += len(part)
    return b"".join(out)


def runs(rng, size):
    out, count = [], 0
    while count < size:
        part = rng.choice([" ", "\n", "\t", "\r\n", " \n", "a", "1", "-", "=", "'", "\u2581", ">"])
        part = (part * rng.choice([1, 2, 3, 5, 30, 300]) + rng.choice(["", "x", " y", "\n"])).encode()
        out.append(part)
        count += len(part)
    return b"".join(out)


def added(rng, size, tokens):
    out, count = [], 0
    while count < size:
        part = rng.choice(tokens) if rng.random() < 0.5 else rng.choice(
            WORDS + [" ", "  ", "\n", "<", "<|", "|>", " word", "\u2581"])
        out.append(part.encode())
        count += len(out[-1])
    return b"".join(out)


def broken(rng, size, files):
    text = bytearray(prose(rng, size, files))
    for _ in range(size // 50):
        text[rng.randrange(len(text))] = rng.randrange(128, 256)
    return bytes(text)


def corpus(megabytes, files, tokens, seed, assigned):
    rng, block = random.Random(seed), 1 << 18
    makers = [lambda: prose(rng, block, files)] * 6 + [lambda: code(rng, block)] * 4 + [
        lambda: runs(rng, block // 2), lambda: added(rng, block // 2, tokens),
        lambda: broken(rng, block, files)]
    makers += [lambda name=name: characters(rng, block // 2, name) for name in RANGES]
    made, index = 0, 0
    while made < megabytes * 1e6:
        part = makers[index % len(makers)]()
        made += len(part)
        index += 1
        yield part
    # Every code point once, each in a context of its own.
    for context in ("a%sb", " %s", "'%s", "1%s ", "\n%s\n"):
        yield "".join(context % chr(c) for c in range(0x33480) if not 0xD800 <= c < 0xE000 and
                      not (assigned and unicodedata.category(chr(c)) == "Cn")).encode()


def compare(bench, where, megabytes, files, seed, assigned):
    path = where if where.endswith(".json") else os.path.join(where, "tokenizer.json")
    library = Tokenizer.from_file(path)
    tokens = [t.content for t in library.get_added_tokens_decoder().values()][:200] or ["<s>"]
    total = count = 0
    parts = list(corpus(megabytes, files, tokens, seed, assigned))
    with tempfile.TemporaryDirectory() as folder:
        listing = os.path.join(folder, "list")
        with open(listing, "w") as f:
            for i, part in enumerate(parts):
                name = os.path.join(folder, f"{i}.txt")
                with open(name, "wb") as g:
                    g.write(part)
                f.write(name + "\n")
        subprocess.run([bench, "--tokenizer", path, "--list", listing], check=True,
                       stdout=subprocess.DEVNULL)
        for i, part in enumerate(parts):
            with open(os.path.join(folder, f"{i}.txt.ids"), "rb") as f:
                data = f.read()
            got = struct.unpack(f"<{len(data) // 4}I", data)
            want = library.encode(part.decode("utf-8", "replace"), add_special_tokens=False).ids
            if list(got) != want:
                at = next((k for k, (a, b) in enumerate(zip(got, want)) if a != b),
                          min(len(got), len(want)))
                kept = os.path.join(tempfile.gettempdir(), "sluice-parity-differs.txt")
                with open(kept, "wb") as f:
                    f.write(part)
                around = library.decode(want[max(0, at - 8):at + 8], skip_special_tokens=False)
                print(f"{where}: block {i} differs at id {at} (text in {kept})\n"
                      f"  library {want[max(0, at - 2):at + 6]}\n"
                      f"  sluice  {list(got[max(0, at - 2):at + 6])}\n  near {around!r}")
                return False
            total += len(part)
            count += len(want)
    print(f"{where}: {total / 1e6:.1f} MB in {len(parts)} blocks, {count} ids, all equal (seed {seed})")
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--text", action="append", default=[], metavar="FILE")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--assigned", action="store_true")
    parser.add_argument("tokenizers", nargs="+")
    arguments = parser.parse_args()
    good = [compare(arguments.bench, where, arguments.megabytes, arguments.text, arguments.seed,
                    arguments.assigned)
            for where in arguments.tokenizers]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
