#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make conversations of the verses of the King James Bible (public domain).

    apt-get install bible-kjv bible-kjv-text
    bible -f gen1:1-rev22:21 | python3 tests/parity/verses.py > verses.jsonl

The first half of a verse's words is the question, the rest the answer. Verses of fewer than ten
words have no half that asks for its other one; they are left out. Reads lines of "Ge1:1 In the
beginning ...", writes a record a line.
"""

import json
import sys

WORDS_MIN = 10


def main():
    for line in sys.stdin:
        words = line.split()[1:]
        if len(words) < WORDS_MIN:
            continue
        half = len(words) // 2
        question = "Continue the verse: " + " ".join(words[:half])
        answer = " ".join(words[half:])
        print(json.dumps({"messages": [{"role": "user", "content": question},
                                       {"role": "assistant", "content": answer}]}))


if __name__ == "__main__":
    main()
