#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the tree promises about itself: layers, gates of libraries, licence lines, names, sizes, headers
# that compile alone.      style.sh ROOT
set -u
cd "$1" || exit 2
bad=0
complain() {
    echo "style: $*" >&2
    bad=1
}

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    files=$(git ls-files)
else
    files=$(find . -type f -not -path './build*' -not -path './.git/*' | sed 's|^\./||')
fi
sources=$(printf '%s\n' "$files" | grep -E '\.(c|h|cu|cuh|cpp|hpp|py|sh)$' | while read -r f; do
    [ -f "$f" ] && echo "$f"; done)
code=$(printf '%s\n' "$sources" | grep -E '\.(c|h|cu|cuh|cpp|hpp)$')

# A lower folder never includes a higher one; kernels and nvme do not include each other.
layer() {
    case "$1" in
    base) echo 1 ;; kernels | nvme) echo 2 ;; offload) echo 3 ;; engine) echo 4 ;;
    bench | tests | python) echo 5 ;; *) echo 0 ;;
    esac
}
while IFS=: read -r file _ include; do
    from=${file%%/*}
    to=$(printf '%s' "$include" | sed -n 's/.*#include "\([a-z_]*\)\/.*/\1/p')
    [ -n "$to" ] || continue
    a=$(layer "$from") b=$(layer "$to")
    if [ "$b" -gt "$a" ] || { [ "$a" = 2 ] && [ "$b" = 2 ] && [ "$from" != "$to" ]; }; then
        complain "$file includes $to/: a lower folder never includes a higher one"
    fi
done < <(printf '%s\n' "$code" | grep -v '^tests/\|^bench/' | xargs grep -n '#include "' /dev/null)

# One gate per library: HEADER may be included by files that match PATTERN alone.
gate() {
    local header=$1 pattern=$2 file
    for file in $(printf '%s\n' "$code" | grep -v '^tests/' |
        xargs grep -l "#include <$header>" /dev/null); do
        printf '%s\n' "$file" | grep -qE "$pattern" ||
            complain "$file includes $header: only $pattern may"
    done
}
gate 'liburing\.h' '^nvme/ring'
gate 'hwloc\.h' '^offload/topology'
gate 'cblas\.h' '^(bench/sgemm|tests/)'
gate 'jansson\.h' '^engine/'
gate 'yaml\.h' '^engine/config_'
gate 'pcre2\.h' '^engine/tokenizer_'
gate 'utf8proc\.h' '^engine/tokenizer_'
gate 'nccl\.h' '^offload/communicator'
gate 'mpi\.h' '^offload/communicator'
gate 'cuda_runtime\.h' '^(kernels/cuda|offload/device_cuda)'

for file in $sources; do
    head -3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' ||
        complain "$file has no SPDX line"
    lines=$(wc -l <"$file")
    [ "$lines" -le 700 ] || complain "$file has $lines lines: does it hold one thing?"
done
long=$(printf '%s\n' "$code" | LC_ALL=C.UTF-8 xargs grep -nE '^.{101,}$' /dev/null | cut -d: -f1,2 | head -5)
[ -z "$long" ] || complain "lines longer than 100: $long"

# File names are unique, so that one is found by its name (build files and indexes aside).
twice=$(printf '%s\n' "$code" | sed 's|.*/||' | sort | uniq -d)
[ -z "$twice" ] || complain "file names that stand twice:" $twice

# Each public header compiles alone.
for header in $(printf '%s\n' "$code" | grep -E '^(base|nvme|offload|engine|kernels/cpu|kernels/host)/.*\.h$'); do
    grep -q 'included once per\|compiled once per\|private to a variant' "$header" && continue
    case "$header" in
    kernels/cpu/*_body.h | kernels/cpu/vector_* | kernels/cpu/optim_q8.h | kernels/cpu/optim_terms.h) continue ;;
    kernels/host/variant.h | kernels/host/simd.h | kernels/host/vecmath.h | kernels/host/attention.h) continue ;;
    esac
    printf '#include "%s"\n' "$header" |
        ${CC:-cc} -std=gnu17 -D_GNU_SOURCE -I. -fsyntax-only -x c - 2>/dev/null ||
        complain "$header does not compile alone"
done

paths=$(printf '%s\n' "$files" | grep -v 'tests/tools/style.sh' | xargs grep -nIE '/(work|farm|root)/' 2>/dev/null | head -3)
[ -z "$paths" ] || complain "a path of one machine: $paths"

[ "$bad" = 0 ] && echo "layers, gates, names and headers are as they should be"
exit $bad
