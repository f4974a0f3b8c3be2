#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tokenizer.json of real size and shape for tokenizers_parity.py and bench-tokenize.

    pip install sentencepiece tokenizers && pip install --no-deps mistral-common
    python3 tests/parity/real_tokenizers.py OUT [--text FILE...]

    OUT/mistral/      Mistral 7B's published vocabulary (32,000, SentencePiece) as Llama 2's files
                      are written: the text is prepended and spaces replaced by a normalizer
    OUT/mistral-v3/   Mistral 7B v0.3's (32,768, control tokens), with a Metaspace pre-tokenizer
    OUT/nemo/         Mistral Nemo's published vocabulary (131,072, byte-level): the kind of Llama 3,
                      ranks of tiktoken that become merges, ignore_merges, a pattern with cases
    OUT/gemma/        with --text: trained on the texts by sentencepiece, as Gemma's is set up: no
                      prefix, digits apart, runs of spaces and line feeds as tokens, byte fallback

A SentencePiece or tiktoken vocabulary has no merges: a piece is made of any two pieces that spell it,
better pieces first. That is how transformers converts them, too.
"""

import argparse
import base64
import importlib.util
import json
import os
import sys
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

MARK = "\u2581"
GEMMA_PIECES = 32000


def merges_of(rank):
    """Pairs that make a piece, by the rank of the piece, then of its parts."""
    found = []
    for piece, at in rank.items():
        parts = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        parts = [p for p in parts if p[0] in rank and p[1] in rank]
        found += [(at, rank[left], rank[right], left, right) for left, right in parts]
    return [(left, right) for _, _, _, left, right in sorted(found)]


def sentencepiece_tokenizer(model_file):
    model = sentencepiece.SentencePieceProcessor(model_file=model_file)
    ids = range(model.vocab_size())
    vocabulary = {model.id_to_piece(i): i for i in ids}
    plain = [i for i in ids if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))]
    special = [i for i in ids if model.is_control(i) or model.is_unknown(i)]
    scores = {model.id_to_piece(i): (-model.get_score(i), i) for i in plain}
    order = sorted(scores, key=scores.get)
    tokenizer = Tokenizer(models.BPE(
        vocab=vocabulary, merges=merges_of({piece: i for i, piece in enumerate(order)}),
        unk_token=model.id_to_piece(model.unk_id()), fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(model.id_to_piece(i), normalized=False, special=True)
                                  for i in special])
    return tokenizer


def spaces_to_marks(prepend):
    parts = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(parts + ([decoders.Strip(" ", 1, 0)] if prepend else []))


def mistral(data):
    tokenizer = sentencepiece_tokenizer(os.path.join(data, "tokenizer.model.v1"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.decoder = spaces_to_marks(True)
    return tokenizer


def mistral_v3(data):
    tokenizer = sentencepiece_tokenizer(
        os.path.join(data, "mistral_instruct_tokenizer_240323.model.v3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)
    tokenizer.decoder = spaces_to_marks(True)
    return tokenizer


def byte_letters():
    """GPT-2's printable letter of each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in shown}
    letters.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in shown)})
    return letters


def nemo(data):
    with open(os.path.join(data, "tekken_240718.json")) as file:
        tekken = json.load(file)
    config, letters = tekken["config"], byte_letters()
    specials = config["default_num_special_tokens"]
    entries = tekken["vocab"][:config["default_vocab_size"] - specials]
    rank = {"".join(letters[b] for b in base64.b64decode(entry["token_bytes"])): entry["rank"]
            for entry in entries}
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    names += [f"<SPECIAL_{i}>" for i in range(len(names), specials)]
    vocabulary = {name: i for i, name in enumerate(names)}
    vocabulary.update({piece: specials + at for piece, at in rank.items()})
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges_of(rank), ignore_merges=True))
    tokenizer.add_special_tokens([AddedToken(n, normalized=False, special=True) for n in names])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(config["pattern"]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def gemma(texts):
    runs = ["\n" * n for n in range(1, 32)] + [MARK * n for n in range(2, 32)] + ["\t"]
    turns = ["<start_of_turn>", "<end_of_turn>"]
    with tempfile.TemporaryDirectory() as scratch:
        sentencepiece.SentencePieceTrainer.train(
            input=texts, model_prefix=os.path.join(scratch, "gemma"), model_type="bpe",
            vocab_size=GEMMA_PIECES, byte_fallback=True, split_digits=True,
            allow_whitespace_only_pieces=True, add_dummy_prefix=False,
            remove_extra_whitespaces=False, normalization_rule_name="identity",
            pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>",
            bos_piece="<bos>", control_symbols=turns, user_defined_symbols=runs,
            max_sentence_length=1 << 20, minloglevel=2)
        tokenizer = sentencepiece_tokenizer(os.path.join(scratch, "gemma.model"))
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = spaces_to_marks(False)
    tokenizer.add_tokens([AddedToken(run, normalized=False, special=False) for run in runs])
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--text", nargs="+", help="files that Gemma's kind is trained on")
    arguments = parser.parse_args()
    package = importlib.util.find_spec("mistral_common")
    if not package:
        sys.exit("mistral-common is not installed; pip install --no-deps mistral-common")
    data = os.path.join(package.submodule_search_locations[0], "data")
    made = {"mistral": mistral(data), "mistral-v3": mistral_v3(data), "nemo": nemo(data)}
    if arguments.text:
        made["gemma"] = gemma(arguments.text)
    for name, tokenizer in made.items():
        folder = os.path.join(arguments.out, name)
        os.makedirs(folder, exist_ok=True)
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        print(f"{folder}: {tokenizer.get_vocab_size()} entries")


if __name__ == "__main__":
    main()
