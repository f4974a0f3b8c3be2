#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whole training runs of the program on the simulated CUDA device.
#
#   train.sh PROGRAM DATA STEPS ORDER...      ORDER: lazy, eager, or a seed
#
# 1. STEPS steps on the host device and on the CUDA device: losses agree. The host computes in f32
#    where CUDA rounds activations to bf16: 2^-8 a rounding, some ten along a token's way, averaged
#    over the 64 tokens of a step: 2^-8 sqrt(10 / 64) = 0.15 % of the loss.
# 2. The weights' hash on the CUDA device is the same for every placement (optimizer on the GPU or
#    on the CPU; weights, gradients, activations on either side; layers whole or, too small to be cut
#    in rows, matrix by matrix) and every order of the streams.
# 3. Greedy generation in fp32 gives the host device's text, and in bf16 runs to its end.
# 4. A run allocates three times on the device: workspace, scratch, and the plan's arena.
# 5. A device that is lost ends the run with exit code 1, names what ran, and leaves the checkpoint
#    saved before as it was.
set -u
program=$1 data=$2 steps=$3
shift 3
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    [ -f "$work/log" ] && tail -n 20 "$work/log"
    exit 1
}

# train OUT STEPS OPTION...: leaves the exit code in $code
train() {
    out=$1 count=$2
    shift 2
    "$program" train --model tiny --data "$data" --out "$work/$out" --steps "$count" --seed 1 \
        --set train.precision=bf16 --set train.sequence_length=32 --set train.micro_batch=2 "$@" \
        >"$work/log" 2>&1
    code=$?
}

last() { find "$work/$1" -maxdepth 1 -name 'checkpoint-*' | sort | tail -n 1; }
hash_of() { "$program" inspect "$(last "$1")" --hash; }
losses() { sed -n 's/.*"loss": \([-0-9.e+]*\),.*/\1/p' "$work/$1/log.jsonl"; }

train host "$steps" --device host
[ "$code" = 0 ] || fail "the host device ended with $code"
train cuda "$steps" --device cuda
[ "$code" = 0 ] || fail "the CUDA device ended with $code"
losses host >"$work/a"
losses cuda >"$work/b"
[ "$(wc -l <"$work/a")" = "$steps" ] || fail "the log has not $steps losses"
paste "$work/a" "$work/b" | awk -v steps="$steps" '
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d }
    END { printf "%d steps, losses differ by at most %.3g of the loss\n", NR, worst
          exit !(NR == steps && worst <= 0.0015) }' || fail "losses of host and CUDA device"

train base 3 --device cuda
[ "$code" = 0 ] || fail "three steps ended with $code"
want=$(hash_of base)
[ -n "$want" ] || fail "no hash"
host_all="--set placement.weights=host --set placement.gradients=host --set placement.optimizer=host"
n=0
for order in "$@"; do
    for placement in "--set placement.optimizer=device" "--set placement.optimizer=host" \
        "$host_all" "$host_all --set placement.activations=host" \
        "$host_all --set tiling.layer_bytes=4096"; do
        n=$((n + 1))
        SLUICE_CUDASIM_STREAMS=$order
        export SLUICE_CUDASIM_STREAMS
        # shellcheck disable=SC2086 # options, not one word
        train "p$n" 3 --device cuda $placement
        unset SLUICE_CUDASIM_STREAMS
        [ "$code" = 0 ] || fail "$placement, streams $order ended with $code"
        got=$(hash_of "p$n")
        [ "$got" = "$want" ] || fail "$placement, streams $order: hash $got, not $want"
    done
done
echo "$n runs, one hash: $want"

# generate DEVICE PRECISION: the text, from weights in host memory
generate() {
    "$program" generate --model "$(last base)" --prompt "The key" --max-tokens 12 \
        --temperature 0 --device "$1" --set "train.precision=$2" --set placement.weights=host \
        2>"$work/log" || fail "generate on $1 in $2"
}
text=$(generate host fp32) || exit 1
[ -n "$text" ] || fail "no text"
[ "$(generate cuda fp32)" = "$text" ] || fail "host and CUDA device generate other texts"
[ -n "$(generate cuda bf16)" ] || fail "no text in bf16"

for allocations in 3 2; do
    SLUICE_CUDASIM_MALLOCS=$allocations
    export SLUICE_CUDASIM_MALLOCS
    train "mallocs$allocations" 2 --device cuda
    unset SLUICE_CUDASIM_MALLOCS
    [ "$((code == 0))" = "$((allocations == 3))" ] || fail "$allocations allocations gave $code"
done
grep -q 'MiB needed' "$work/log" || fail "the refused allocation is not named"

cp -r "$work/base" "$work/lost"
before=$(hash_of lost)
SLUICE_CUDASIM_LOST=400
export SLUICE_CUDASIM_LOST
train lost 40 --device cuda --resume
unset SLUICE_CUDASIM_LOST
[ "$code" = 1 ] || fail "a lost device gave exit code $code"
grep -q 'cudaErrorLaunchFailure' "$work/log" || fail "the lost device is not named"
grep -q 'last operations' "$work/log" || fail "the operations are not named"
[ "$(hash_of lost)" = "$before" ] || fail "the checkpoint changed"
sed -n 's/^sluice: /lost device: /p' "$work/log" | head -n 2
