#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Model folders that are damaged, tampered with or of something else: each ends in an error that
# names file and field, within the memory that the sound folder is run in.
#
#     folders.sh SLUICE
set -u
sluice=$(realpath "$1")
# shellcheck source=expect.sh
. "$(dirname "$(realpath "$0")")/expect.sh"

for ((i = 0; i < 300; i++)); do echo "line $i of some text: $((i * i))"; done >text
expect 0 "" "$sluice" train --model tiny --data text --device host --steps 1 --out run \
    --set train.sequence_length=32 --set data.cache=false
expect 0 "" "$sluice" export run/checkpoint-00000001 good
header_bytes=$(od -An -tu8 -N8 good/model.safetensors | tr -d ' ')
file_bytes=$(stat -c %s good/model.safetensors)

# run FOLDER: what it is tested with. Address space, because nothing may be asked for that a file
# only claims to hold.
run() {
    limits_memory && ulimit -v 2200000
    exec "$sluice" generate --model "$1" --device host --set threads=1 --prompt "line 1" \
        --max-tokens 2
}
export -f run limits_memory
export sluice
good() { expect 0 "" bash -c 'run good'; }
good

# fresh: bad/ is a copy of the sound folder.
fresh() {
    rm -rf bad
    cp -r good bad
}

# bad WORDS...: the folder as it is now is refused, with each of the words.
bad() {
    expect 2 "$1" bash -c 'run bad'
    shift
    for words in "$@"; do grep -qF -- "$words" err || fail "no \"$words\""; done
    fresh
}

# header SED: edit the header's JSON and fill up with spaces; no other byte moves.
header() {
    tail -c +9 good/model.safetensors | head -c "$header_bytes" | sed "$1" | sed 's/ *$//' >json
    cmp -s json <(tail -c +9 good/model.safetensors | head -c "$header_bytes" | sed 's/ *$//') &&
        fail "header: $1 changes nothing"
    printf "%-${header_bytes}s" "$(cat json)" |
        dd of=bad/model.safetensors bs=1 seek=8 conv=notrunc status=none
}

# claim BYTES BYTES_OF_FILE: a header of that length, in a file of that length.
claim() {
    local i
    for ((i = 0; i < 8; i++)); do printf "\\x$(printf %02x $((($1 >> 8 * i) & 255)))"; done |
        dd of=bad/model.safetensors bs=1 conv=notrunc status=none
    truncate -s "$2" bad/model.safetensors
}

# config SED: edit config.json.
config() {
    sed "$1" good/config.json >bad/config.json
    cmp -s good/config.json bad/config.json && fail "config: $1 changes nothing"
}

fresh

# The file of weights.
claim $((1 << 40)) "$file_bytes"
bad bad/model.safetensors "header of 1099511627776 bytes"
claim $((1 << 40)) $(((1 << 40) + 4096))
bad bad/model.safetensors "header of 1099511627776 bytes"
claim 99999999 200000000 # an allowed length, of zeros
bad bad/model.safetensors
claim 0 "$file_bytes"
bad bad/model.safetensors
truncate -s $((file_bytes - 100)) bad/model.safetensors
bad bad/model.safetensors "cut off"
truncate -s 5 bad/model.safetensors
bad bad/model.safetensors
header 's/layers.1.mlp.up_proj/layers.0.mlp.up_proj/'
bad bad/model.safetensors model.layers.0.mlp.up_proj.weight
header 's/"shape":\[264,64\]/"shape":[4294967296,4294967296]/'
bad bad/model.safetensors model.embed_tokens.weight shape
header 's/"shape":\[264,64\]/"shape":[264,-64]/'
bad bad/model.safetensors model.embed_tokens.weight shape
header 's/"shape":\[264,64\]/"shape":[264,1e99]/'
bad bad/model.safetensors shape
header 's/\[0,33792\]/[0,33790]/'
bad bad/model.safetensors model.embed_tokens.weight data_offsets
header 's/\[33792,33920\]/[0,128]/'
bad bad/model.safetensors "overlaps another tensor"
header 's/"BF16"/"BF61"/'
bad bad/model.safetensors dtype BF61
header 's/.$/,/'
bad bad/model.safetensors
printf '\377' | dd of=bad/model.safetensors bs=1 seek=40 conv=notrunc status=none
bad bad/model.safetensors

# Tensors that the model lacks or has in excess or in another shape, all in one message.
header 's/layers.1.mlp.up_proj/layers.9.mlp.up_proj/; s/\[64,176\]/[176,64]/'
bad "bad: " "1 missing (model.layers.1.mlp.up_proj.weight)" \
    "1 not of this model (model.layers.9.mlp.up_proj.weight)" \
    "1 of another shape (model.layers.0.mlp.down_proj.weight: 176x64 instead of 64x176)"

# Weights of a form that is not read are not replaced by random ones.
mv bad/model.safetensors bad/pytorch_model.bin
expect 2 "pytorch_model.bin, only safetensors are read" "$sluice" train --model bad --data text \
    --device host --steps 1 --out none
[ ! -e none ] || fail "a refused run left --out behind"
fresh
rm bad/model.safetensors bad/tokenizer.json
expect 0 "weights begin at random" "$sluice" train --model bad --data text --device host --steps 1 \
    --out random --set train.sequence_length=32 --set data.cache=false
grep -qF "no tokenizer.json: every byte is a token" err || fail "no word on the missing tokenizer"
fresh

# Shards.
shards() {
    mv bad/model.safetensors bad/one.safetensors
    printf '{"metadata": {}, "weight_map": {%s}}' "$1" >bad/model.safetensors.index.json
}
cp good/model.safetensors outside.safetensors
shards '"model.embed_tokens.weight": "../outside.safetensors"'
bad bad/model.safetensors.index.json weight_map ../outside.safetensors
shards "\"model.embed_tokens.weight\": \"$PWD/outside.safetensors\""
bad bad/model.safetensors.index.json weight_map
shards '"model.embed_tokens.weight": "two.safetensors"'
bad bad/two.safetensors
shards '"model.norm.weight": "one.safetensors", "model.norm.weight": "one.safetensors"'
bad bad/model.safetensors.index.json model.norm.weight
shards '"a": "one.safetensors"'
truncate -s -1 bad/one.safetensors
bad bad/one.safetensors
rm bad/model.safetensors
bad "bad: "
rm bad/model.safetensors
mkfifo bad/model.safetensors
bad bad/model.safetensors
rm bad/model.safetensors
mkdir bad/model.safetensors
bad bad/model.safetensors

# Models of other kinds, and numbers that no model has.
config 's/"model_type": "llama"/"model_type": "mixtral"/'
bad bad/config.json model_type "mixtures of experts"
config 's/"use_cache"/"num_local_experts": 8, "use_cache"/'
bad bad/config.json num_local_experts "mixtures of experts"
config 's/"model_type": "llama"/"model_type": "qwen2_vl"/'
bad bad/config.json model_type "vision"
config 's/"use_cache"/"vision_config": {}, "use_cache"/'
bad bad/config.json vision_config
config 's/"use_cache"/"quantization_config": {"bits": 4}, "use_cache"/'
bad bad/config.json quantization_config
config 's/"model_type": "llama"/"model_type": "mamba"/'
bad bad/config.json model_type mamba
config 's/"num_hidden_layers": 4/"num_hidden_layers": 400000000/'
bad bad/config.json num_hidden_layers
config 's/"hidden_size": 64/"hidden_size": 1048576/; s/: 176/: 4194304/'
bad "bad: " "of another shape"
config 's/"vocab_size": 264/"vocab_size": -1/'
bad bad/config.json vocab_size
config 's/"rms_norm_eps": [0-9.e-]*/"rms_norm_eps": "small"/'
bad bad/config.json rms_norm_eps
config 's/"num_attention_heads"/"hidden_size": 64, "num_attention_heads"/'
bad bad/config.json hidden_size
truncate -s 5000000 bad/config.json
bad bad/config.json "4 MiB"
rm bad/config.json
bad bad/config.json "No such file"
rm bad/config.json bad/model.safetensors
echo '{"peft_type": "LORA"}' >bad/adapter_config.json
bad "LoRA adapter"

# Its tokenizer.
echo '{"model": {"type": "Unigram", "vocab": []}}' >bad/tokenizer.json
bad bad/tokenizer.json Unigram
echo '{' >bad/tokenizer.json
bad bad/tokenizer.json

# Dropout is a matter of training alone.
config 's/"attention_dropout": 0.0/"attention_dropout": 0.1/'
expect 0 "" bash -c 'run bad'
expect 2 "dropout 0.1" "$sluice" train --model bad --data text --device host --steps 1 --out none
[ ! -e none ] || fail "a refused run left --out behind"

good
finish
