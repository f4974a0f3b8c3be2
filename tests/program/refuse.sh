#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the program refuses, and what it survives: exit code, the words of the message, and that a
# refused run leaves nothing behind.
#
#     refuse.sh SLUICE
set -u
sluice=$(realpath "$1")
# shellcheck source=expect.sh
. "$(dirname "$(realpath "$0")")/expect.sh"

for ((i = 0; i < 300; i++)); do echo "line $i of some text: $((i * i))"; done >text
tiny=(train --model tiny --data text --device host --steps 3 --set train.sequence_length=32
    --set data.cache=false)

# set KEY=VALUE WORDS: refused with these words, and no output folder
set_refused() {
    expect 2 "$2" "$sluice" "${tiny[@]}" --out none --set "$1"
    [ ! -e none ] || fail "$1 left --out behind"
    rm -rf none
}
set_refused train.micro_batch=0 "from 1 to 1048576"
set_refused train.steps=1e30 "from 1 to 9007199254740992"
set_refused zero_optimization.sub_group_size=1e18 "from 0 to 9007199254740992"
set_refused train.learning_rate=nan "from 0 to 1000"
set_refused train.learning_rate=1,5 "from 0 to 1000"
set_refused nvme.queue_depth=16385 "from 0 to 16384"
set_refused threads=1025 "from 0 to 1024"
set_refused memory.host=1 "memory.host: "
set_refused nvme.path=/no/such/folder "give a folder on a fast disk"
set_refused data.cahce=false "did you mean data.cache?"
set_refused batch_size=4 "did you mean train_batch_size?"
expect 2 "fp16.loss_scale 1e-40 is below" "$sluice" "${tiny[@]}" --out none --set fp16.enabled=true \
    --set fp16.loss_scale=1e-40
expect 2 "nothing to train" "$sluice" "${tiny[@]}" --out none --set 'train.frozen=*'
[ ! -e none ] || fail "a refused run left --out behind"

# Commands, options and names that are misspelt or incomplete: what was meant, in a line or two.
expect 2 "did you mean train?" "$sluice" trian
expect 2 "did you mean --model?" "$sluice" train --modle tiny
expect 2 "--model needs a value" "$sluice" train --model
expect 2 "train needs --data FILE --out DIR" "$sluice" train --model tiny
expect 2 "--resume takes no value" "$sluice" train --resume=yes
expect 2 "simulate needs --hardware" "$sluice" simulate --model tiny
expect 2 "a whole number from 1 to 65536" "$sluice" simulate --model tiny --hardware h200 --ranks 0
expect 2 "one of layer-major" "$sluice" simulate --model tiny --hardware h200 --schedule zero
expect 2 "--top-p 2: a number from 1e-06 to 1" "$sluice" generate --model tiny --prompt a --top-p 2
[ "$(wc -l <err)" -le 2 ] || fail "a wrong option is answered at length"
expect 2 "did you mean llama-8b?" "$sluice" plan --model llama-8bb
expect 2 "nothing is downloaded here" "$sluice" plan --model meta-llama/Llama-3.1-8B
expect 2 "is a file; give the folder" "$sluice" plan --model text
expect 0 "" "$sluice" help train
grep -q -- "--resume" out || fail "help train is not train --help"

# What does not fit is told with what would.
expect 2 "what would fit: nvme.path on a drive with" "$sluice" plan --model llama-1b --device host \
    --set memory.host=4GiB
expect 2 "what would fit: train.micro_batch=8 instead of 64, train.accumulation=8 instead of 1" "$sluice" \
    plan --model tiny --device host:discrete --set train.micro_batch=64 --set memory.device=100MiB \
    --set placement.weights=host --set placement.gradients=host --set placement.optimizer=host \
    --set placement.activations=host
expect 2 "memory.nvme: " "$sluice" plan --model tiny --device host --set nvme.path=. \
    --set placement.optimizer=nvme --set memory.nvme=1MiB

# A budget is not memory: 64 times what this machine has is refused before it is touched.
machine=$(awk '/MemTotal/ {printf "%d", $2 / 1048576 + 1}' /proc/meminfo)
expect 2 "end other programs" "$sluice" "${tiny[@]}" --out none \
    --set "memory.host=$((64 * machine))GiB" --set train.micro_batch=$((machine * 8192))
[ ! -e none ] || fail "a run without memory left --out behind"

# A budget for a device that has no memory of its own is answered, not passed over in silence.
expect 0 "memory.device has no effect" "$sluice" plan "${tiny[@]:1}" --set memory.device=1
expect 2 "memory.device: " "$sluice" "${tiny[@]}" --out none --device host:discrete \
    --set memory.device=1
[ ! -e none ] || fail "a device without memory left --out behind"

# Data that is no file would be waited for, or never end.
mkfifo pipe
expect 2 "a pipe or a device" "$sluice" "${tiny[@]}" --out none --data pipe
expect 2 "a pipe or a device" "$sluice" "${tiny[@]}" --out none --data /dev/zero
: >empty
expect 2 "no text in it" "$sluice" "${tiny[@]}" --out none --data empty
gzip -c text >text.gz
expect 2 "gzip data, not text" "$sluice" "${tiny[@]}" --out none --data text.gz
printf 'PAR1....' >rows.parquet
expect 2 "Parquet data, not text" "$sluice" tokenize --tokenizer bytes --out ids.bin rows.parquet
expect 2 "give text, .jsonl or .bin files" "$sluice" "${tiny[@]}" --out none --data no-such-file
expect 2 "not a checkpoint" "$sluice" inspect .

# A trace that could not be written is told before the run, not after it.
expect 2 'trace "/no/such/folder/t.json"' "$sluice" "${tiny[@]}" --out none \
    --trace /no/such/folder/t.json
[ ! -e none ] || fail "a refused run left --out behind"

# --out: one run at a time, and no second run among the first one's checkpoints.
expect 2 "there is no checkpoint below" "$sluice" "${tiny[@]}" --out none --resume
[ ! -e none ] || fail "a refused --resume left --out behind"
expect 0 "" "$sluice" "${tiny[@]}" --out run
expect 2 "is there from another run" "$sluice" "${tiny[@]}" --out run
expect 2 "tiling.layer_bytes was 0 and is now 4096" "$sluice" "${tiny[@]}" --out run --resume \
    --set tiling.layer_bytes=4096
expect 2 "train.seed was 0 and is now 9" "$sluice" "${tiny[@]}" --out run --resume --seed 9
exec 9<>run/log.jsonl
flock 9
expect 2 "another run writes to it" "$sluice" "${tiny[@]}" --out run --resume
exec 9>&-
expect 2 "Not a directory" "$sluice" "${tiny[@]}" --out text

# The newest checkpoint damaged: named, not loaded; the one before is taken once it is away.
expect 0 "" "$sluice" "${tiny[@]}" --out two --steps 4 --set train.save_interval=2
printf '\377\377\377\377' | dd of=two/checkpoint-00000004/sluice-exp_avg.safetensors bs=1 \
    seek=90000 conv=notrunc status=none
expect 1 "checkpoint-00000004" "$sluice" "${tiny[@]}" --out two --steps 6 --resume
expect 1 "changed or damaged" "$sluice" inspect two/checkpoint-00000004 --hash
mv two/checkpoint-00000004 aside
expect 0 "resumed from two/checkpoint-00000002" "$sluice" "${tiny[@]}" --out two --steps 6 --resume

# Off a terminal: the first step, every so many, the last; or only where something happened.
expect 0 "" "$sluice" "${tiny[@]}" --out lines --steps 5 --set steps_per_print=2
[ "$(grep -o '^step [0-9]*' out | tr -d '\n')" = "step 1step 2step 4step 5" ] ||
    fail "steps_per_print 2: $(grep '^step' out)"
expect 0 "" "$sluice" "${tiny[@]}" --out silent --steps 5 --set steps_per_print=0
[ "$(grep -c '^step' out)" -eq 1 ] || fail "steps_per_print 0: $(grep '^step' out)"

# A folder that is no drive.
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && [ -w /dev/shm ]; then
    expect 0 "lies in memory (tmpfs)" "$sluice" "${tiny[@]}" --out shm --set nvme.path=/dev/shm \
        --set placement.optimizer=nvme
fi
expect 2 "give a directory on a local drive" "$sluice" "${tiny[@]}" --out proc --set nvme.path=/proc \
    --set placement.optimizer=nvme

# fp32, no moments, frozen tensors: what the files hold is what was saved.
echo '{"optimizer": {"type": "SGD", "params": {"lr": 0.01, "momentum": 0}}}' >sgd.json
expect 0 "" "$sluice" "${tiny[@]}" --config sgd.json --set train.precision=fp32 \
    --set 'train.frozen=*k_proj*' --out frozen
expect 0 "" "$sluice" inspect frozen/checkpoint-00000003 --hash

# Limits of the shell: a message instead of a signal or a hang.
expect 1 "File too large" bash -c "ulimit -f 100; exec '$sluice' train --model tiny --data text \
    --device host --steps 3 --set train.sequence_length=32 --set data.cache=false --out limited"
ls -d limited/checkpoint-* 2>/dev/null && fail "a checkpoint over ulimit -f"
limits_memory && expect 2 "ulimit -v" bash -c "ulimit -v 1000000; exec '$sluice' plan --model tiny"

# Nobody reads: messages do not land in files, and an exit code says that output was lost.
"$sluice" "${tiny[@]}" --out closed >&- 2>&- || fail "closed descriptors: exit code $?"
"$sluice" inspect closed/checkpoint-00000003 --hash >/dev/null 2>err || fail "closed descriptors"
expect 1 "standard output" bash -c "'$sluice' --help >/dev/full"
expect 1 "standard output" bash -c "'$sluice' plan --model tiny --json >/dev/full"

# A closed terminal and a closed pipe stop a run as Ctrl-C does: saved.
# (Under nohup, which is inherited, it goes on: that is what nohup asks for.)
env --default-signal=HUP "$sluice" "${tiny[@]}" --out hung --steps 1000000 >out 2>err &
for ((i = 0; i < 200; i++)); do [ ! -s hung/log.jsonl ] && sleep 0.05; done
kill -HUP $!
wait $!
[ $? -eq 1 ] || fail "SIGHUP: exit code"
ls -d hung/checkpoint-*[0-9] >/dev/null 2>&1 || fail "SIGHUP lost the run"

# One press that arrives twice (`timeout -s INT` signals a process and then its group) saves, too.
env --default-signal=INT "$sluice" "${tiny[@]}" --out pressed --steps 1000000 >out 2>err &
for ((i = 0; i < 200; i++)); do [ ! -s pressed/log.jsonl ] && sleep 0.05; done
kill -INT $! && kill -TERM $!
wait $!
[ $? -eq 1 ] || fail "SIGINT and SIGTERM: exit code"
ls -d pressed/checkpoint-*[0-9] >/dev/null 2>&1 || fail "a signal that came twice lost the run"

finish
