#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The data commands as a user gives them: data.sh PROGRAM
#
# 1. tokenize: the .bin of two texts, in both formats; a conversation is refused, then allowed; wrong
#    arguments end with code 2 and name what is wrong; nothing is left behind.
# 2. train reads the .bin, and a record file whose first example it shows with its mask.
# 3. generate --chat: one message, and a conversation from standard input.
set -u
program=$(realpath "$1")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

fail() {
    echo "FAILED: $*"
    [ -f log ] && tail -n 20 log
    exit 1
}

# expect CODE WORDS COMMAND...: its exit code, and words in what it says
expect() {
    code=$1 words=$2
    shift 2
    "$program" "$@" > log 2>&1 < "${input:-/dev/null}"
    status=$?
    [ $status -eq "$code" ] || fail "code $status, not $code: $*"
    grep -qF -e "$words" log || fail "no \"$words\": $*"
}

bytes() { wc -c < "$1" | tr -d ' '; }

printf 'In the beginning was the word.' > a.txt
printf 'And the word was light, and the light was good.' > b.txt
printf '{"messages": [{"role": "user", "content": "word"}, {"role": "assistant", "content": "light"}]}\n' > chat.jsonl

# 30 + 47 bytes, an id behind each text and, in llm.c's form, one before the first.
expect 0 "79 tokens" tokenize --tokenizer bytes --format nanogpt --out n.bin a.txt b.txt
[ "$(bytes n.bin)" -eq 158 ] || fail "n.bin has $(bytes n.bin) bytes"
expect 0 "80 tokens" tokenize --tokenizer bytes --threads 2 --out l.bin a.txt b.txt
[ "$(bytes l.bin)" -eq 1184 ] || fail "l.bin has $(bytes l.bin) bytes"
expect 2 "no mask" tokenize --tokenizer bytes --out c.bin chat.jsonl
expect 0 "tokens" tokenize --tokenizer bytes --train-on-prompt --chat-template plain --out c.bin chat.jsonl
expect 2 "give llmc or nanogpt" tokenize --tokenizer bytes --format bin --out x.bin a.txt
expect 2 "give 1 to 1024" tokenize --tokenizer bytes --threads 1025 --out x.bin a.txt
expect 2 "needs --tokenizer" tokenize --out x.bin a.txt
expect 2 "none.txt" tokenize --tokenizer bytes --out x.bin none.txt
expect 2 "known are plain" tokenize --tokenizer bytes --chat-template none --out x.bin a.txt
for file in x.bin* *.state *.partial; do
    case $file in "x.bin*" | "*.state" | "*.partial") ;;
    *) fail "$file was left behind" ;;
    esac
done

run="train --model tiny --device host --steps 1 --set train.sequence_length=16 --set threads=2"
# shellcheck disable=SC2086
expect 0 "the first sequence" $run --data l.bin --out from-bin
# shellcheck disable=SC2086
expect 0 "trained | light<|endoftext|>" $run --data chat.jsonl --out from-chat --set data.template=plain
[ -n "$(ls from-chat/cache)" ] || fail "no cache"

# A model that was tuned with a named template is talked to with it, wherever its folder goes.
# shellcheck disable=SC2086
expect 0 "" $run --data chat.jsonl --out tuned --set data.template=alpaca --set data.cache=false \
    --set train.sequence_length=256
expect 0 "" export tuned/checkpoint-00000001 exported
grep -qF '### Instruction:' exported/chat_template.jinja || fail "the template was not carried"
expect 0 "" generate --model exported --device host --chat --prompt word --max-tokens 1
grep -qF "no known marker" log && fail "the carried template is not known"
expect 0 "template alpaca" train --model exported --device host --steps 1 --data chat.jsonl --out again \
    --set train.sequence_length=256 --set data.cache=false

chat="generate --model from-chat/checkpoint-00000001 --device host --set threads=2 --max-tokens 4 --chat"
# shellcheck disable=SC2086
expect 0 "tokens/s" $chat --prompt word --system "be short" --stats
printf 'word\n\nlight\n' > lines
input=lines
# shellcheck disable=SC2086
expect 0 "of earlier turns were cached" $chat --stats
input=/dev/null
# shellcheck disable=SC2086
expect 2 "--logits" $chat --prompt word --logits x
# shellcheck disable=SC2086
expect 2 "known are plain" $chat --prompt word --chat-template none
expect 2 "need --chat" generate --model from-chat/checkpoint-00000001 --prompt word --system x
echo "ok"
