#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train every family a little, export it, and let transformers compute the same logits.

    python3 tests/parity/export_families.py build/engine/program/sluice [FAMILY...]

A family is a folder of tests/fixtures/models. Each is trained for three steps in fp32 on random ids,
so that no tensor is what it was, exported, and compared by export.py: all tensors must load, and the
logits agree within 1e-5 of the largest. Needs what export.py needs.
"""
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent / "fixtures" / "models"
VOCABULARY = 80  # of the fixtures; the prompt's bytes are ids below it
PROMPT = "IN 12 BEGINNING: 3 AND 45 ME"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"FAIL {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def check(sluice, family, work):
    ids = random.Random(7).choices(range(VOCABULARY), k=20000)
    (work / "ids.bin").write_bytes(struct.pack(f"<{len(ids)}H", *ids))
    out, export, logits = work / "run", work / "export", work / "logits"
    run(sluice, "train", "--model", MODELS / family, "--data", work / "ids.bin", "--out", out,
        "--set", "train.steps=3", "--set", "train.sequence_length=24",
        "--set", "train.micro_batch=2", "--set", "train.precision=fp32")
    run(sluice, "export", out / "checkpoint-00000003", export)
    run(sluice, "generate", "--model", export, "--prompt", PROMPT, "--max-tokens", "1",
        "--logits", logits)
    print(f"{family}: {run(sys.executable, HERE / 'export.py', export, logits).strip()}", flush=True)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    known = sorted(path.parent.name for path in MODELS.glob("*/model.safetensors"))
    for family in sys.argv[2:] or known:
        if family not in known:
            sys.exit(f"{family}: none of {', '.join(known)}")
        with tempfile.TemporaryDirectory() as work:
            check(pathlib.Path(sys.argv[1]).resolve(), family, pathlib.Path(work))


if __name__ == "__main__":
    main()
