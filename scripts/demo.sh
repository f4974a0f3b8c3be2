#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a small Llama-class model on real English text, its optimizer state on NVMe:
#
#     scripts/demo.sh [TEXT FILE...]
#
# Without a file, on the King James Bible of Debian's package bible-kjv-text. Results: out/demo.
# SLUICE_NVME names a folder on the disk to use (default: out/nvme).
source "$(dirname "$0")/common.sh"
set -o pipefail

out=${SLUICE_OUT:-$root/out/demo}
nvme=${SLUICE_NVME:-$root/out/nvme}

if [ $# -eq 0 ]; then
    install_missing $base_packages bible-kjv bible-kjv-text
else
    install_missing $base_packages
fi
configure "$build" --buildtype=release
say "building"
ninja -C "$build" demo

mkdir -p "$out" "$nvme"
if [ $# -eq 0 ]; then
    text=$root/out/king-james.txt
    if [ ! -s "$text" ]; then
        say "extracting the text"
        bible -f gen1:1-rev22:21 >"$text.partial"
        mv "$text.partial" "$text"
    fi
    set -- "$text"
fi

sluice=$build/engine/program/sluice
common=(--model bible-2m --data "$@" --config "$root/scripts/demo.json"
    --set "nvme.path=$nvme" --set train.steps=1200 --set train.sequence_length=128
    --set train.warmup_steps=100 --set train.lr_scheduler_type=cosine --set train.min_lr_ratio=0.05
    --set train.eval_interval=400 --set optimizer.master=split)

say "training: optimizer state in $nvme, results in $out"
rm -rf "$out"/checkpoint-*
start=$(date +%s)
"$sluice" train "${common[@]}" --out "$out" --seed 1
checkpoint=$(ls -d "$out"/checkpoint-* | tail -1)

say "held out"
"$build/bench/count_table" "${common[@]}" --seed 1
tail -1 "$out/log.jsonl" | sed -n 's/.*"eval_loss": \([0-9.]*\).*/this model: \1 nats per byte/p'

say "a sample"
prompt="And it came to pass "
printf '%s' "$prompt"
"$sluice" generate --device host --model "$checkpoint" --prompt "$prompt" --max-tokens 300 \
    --temperature 0.7 --seed 3

say "done in $(($(date +%s) - start)) s"
echo "checkpoint (transformers loads it): $checkpoint"
echo "log, a line per step:               $out/log.jsonl"
