#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check that transformers loads a model folder and computes the same logits.

    python3 tests/parity/export.py FOLDER LOGITS [--tolerance 1e-5] [--dtype float32]
    python3 tests/parity/export.py FOLDER LOGITS --make --text TEXT | --ids 1,2,3

FOLDER is what `sluice export` (or a checkpoint) wrote. LOGITS is a safetensors file:

    input_ids   I32 [B, T] or [T]
    logits      F32 [B, T, V] or [T, V], of every position

The check fails where transformers misses or ignores a tensor, where the configuration's two
generations of keys disagree, where a tokenizer.json does not load, and where the largest difference
of two logits exceeds tolerance times the largest logit. With --make the file is written instead, by
transformers, for another program to compare with.

Needs torch, transformers (4 or 5) and safetensors.
"""

import argparse
import json
import os
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file


def load(folder, dtype):
    key = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        attn_implementation="eager",
        output_loading_info=True,
        **{key: getattr(torch, dtype)},
    )
    problems = []
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(kind):
            problems.append(f"{kind}: {sorted(map(str, info[kind]))[:5]}")
    if problems:
        sys.exit(f"FAIL {folder}: " + "; ".join(problems))
    return model.eval()


def check_config(folder):
    """Readers of either generation must find the same rotary base."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    parameters, theta = config.get("rope_parameters"), config.get("rope_theta")
    if parameters and theta is not None:
        flat = parameters.get("full_attention", parameters)
        if flat.get("rope_theta") != theta:
            sys.exit(f"FAIL {folder}: rope_theta {theta} and {flat.get('rope_theta')}")
    if "dtype" in config and config.get("torch_dtype", config["dtype"]) != config["dtype"]:
        sys.exit(f"FAIL {folder}: dtype and torch_dtype differ")


def check_tokenizer(folder):
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        return "no tokenizer.json"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=path)
    text = "In the beginning: 12 äöü 你好 🙂\n\ttab"
    back = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True,
                            clean_up_tokenization_spaces=False)
    if back.strip() != text:
        sys.exit(f"FAIL {folder}: tokenizer.json turns {text!r} into {back!r}")
    return f"tokenizer.json with {len(tokenizer)} tokens"


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids.long(), use_cache=False).logits.float()


def make(model, arguments):
    if arguments.ids:
        ids = torch.tensor([[int(x) for x in arguments.ids.split(",")]])
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.folder)
        ids = torch.tensor([tokenizer(arguments.text)["input_ids"]])
    save_file({"input_ids": ids.int(), "logits": logits_of(model, ids).contiguous()},
              arguments.logits, metadata={"format": "pt"})
    print(f"{arguments.logits}: {ids.shape[1]} positions")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("logits")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--text", default="In the beginning God created the heaven and the earth.")
    parser.add_argument("--ids")
    arguments = parser.parse_args()
    check_config(arguments.folder)
    model = load(arguments.folder, arguments.dtype)
    if arguments.make:
        return make(model, arguments)
    given = load_file(arguments.logits)
    ids, ours = given["input_ids"], given["logits"]
    if ids.dim() == 1:
        ids, ours = ids[None], ours[None]
    theirs = logits_of(model, ids)
    if theirs.shape != ours.shape:
        sys.exit(f"FAIL: logits {tuple(ours.shape)}, transformers {tuple(theirs.shape)}")
    scale = theirs.abs().max().item()
    worst = (theirs - ours).abs().max().item() / scale
    agree = (theirs.argmax(-1) == ours.argmax(-1)).float().mean().item()
    note = check_tokenizer(arguments.folder)
    line = (f"{arguments.folder}: {ids.numel()} positions, largest difference {worst:.2e} of the "
            f"largest logit, {100 * agree:.1f} % same first choice, {note}")
    if not worst <= arguments.tolerance:
        sys.exit(f"FAIL {line}; the limit is {arguments.tolerance:g}")
    print(f"ok   {line}")


if __name__ == "__main__":
    main()
