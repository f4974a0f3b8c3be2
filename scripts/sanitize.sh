#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The quick suite under AddressSanitizer and UndefinedBehaviorSanitizer, and the tests of everything
# that has threads under ThreadSanitizer.
source "$(dirname "$0")/common.sh"
set -o pipefail

threaded="workers device_host swap placement executor optimizer"

# check NAME SANITIZERS TEST...
check() {
    local name=$1 sanitizers=$2
    shift 2
    # At -O2 -g the unrolled kernels alone take minutes to compile under a sanitizer; its reports
    # need lines alone (-g1). meson builds what the chosen tests depend on, and no more.
    configure "$root/build-$name" -Doptimization=1 -Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1 \
        "-Db_sanitize=$sanitizers" -Db_lundef=false -Dcuda=disabled
    say "$sanitizers"
    meson test -C "$root/build-$name" --print-errorlogs --timeout-multiplier 6 "$@" |
        grep -v '^\[[0-9]*/[0-9]*\] '
}

export ASAN_OPTIONS=abort_on_error=1:detect_leaks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
# Both at once: one test of the threads takes as long as all others of them, and leaves cores idle.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086
check tsan thread $threaded >"$log" 2>&1 &
threads=$!
status=0
check asan address,undefined --suite quick || status=1
wait $threads || status=1
cat "$log"
exit $status
