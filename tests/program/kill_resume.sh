#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run that is killed at random moments, with a checkpoint after every step, ends in the bits of an
# unbroken one, and whatever the kill interrupted, the newest checkpoint is whole:
#
#     kill_resume.sh SLUICE KILLS [SEED]
set -u
sluice=$(realpath "$1") kills=$2 RANDOM=${3:-$$}
echo "seed ${3:-$$}"
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-kill.XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*" >&2
    tail -5 "$work/log" >&2
    exit 1
}

for ((i = 0; i < 400; i++)); do echo "line $i of a text that a model can learn: $((i * i))"; done >"$work/text"
mkdir "$work/swap"
steps=24
train() { # OUT MORE...
    local out=$1
    shift
    exec "$sluice" train --model tiny --data "$work/text" --out "$out" --steps $steps --seed 5 --device host \
        --set train.sequence_length=32 --set train.save_interval=1 --set placement.optimizer=nvme \
        --set "nvme.path=$work/swap" "$@" >"$work/log" 2>&1
}
newest() { ls -d "$1"/checkpoint-*[0-9] 2>/dev/null | tail -1; }

start=$(date +%s%N)
(train "$work/whole") || fail "the unbroken run"
span_ms=$((($(date +%s%N) - start) / 1000000 + 1)) # of a whole run: kills fall into all of it
want=$("$sluice" inspect "$(newest "$work/whole")" --hash) || fail "the unbroken run's hash"

killed=0 ended=0 round=0
while ((killed < kills)); do
    ((++round > 20 * kills + 20)) && fail "only $killed kills in $round runs"
    resume=()
    [ -z "$(newest "$work/run")" ] || resume=(--resume)
    (train "$work/run" ${resume[@]+"${resume[@]}"}) &
    pid=$!
    wait_ms=$((RANDOM % span_ms))
    sleep "$((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))"
    if kill -9 $pid 2>/dev/null; then killed=$((killed + 1)); fi
    wait $pid 2>/dev/null
    code=$?
    [ $code -eq 137 ] || [ $code -eq 0 ] || fail "round $round: exit code $code"
    last=$(newest "$work/run")
    [ -n "$last" ] || continue
    hash=$("$sluice" inspect "$last" --hash 2>>"$work/log") || fail "round $round: $last is damaged"
    [ "$(basename "$last")" = "checkpoint-$(printf %08d $steps)" ] || continue
    [ "$hash" = "$want" ] || fail "round $round: $hash, the unbroken run has $want"
    ended=$((ended + 1))
    rm -rf "$work/run"
done
if [ -d "$work/run" ] && [ -n "$(newest "$work/run")" ]; then
    (train "$work/run" --resume) || fail "the last resume"
    [ "$("$sluice" inspect "$(newest "$work/run")" --hash)" = "$want" ] || fail "another hash at the end"
    ended=$((ended + 1))
    lines=$(wc -l <"$work/run/log.jsonl")
    [ "$lines" -le $steps ] || fail "log.jsonl has $lines lines"
fi
((ended > 0)) || fail "no run came to its end"
echo "$killed kills, $ended runs to the end, all with hash $want"
