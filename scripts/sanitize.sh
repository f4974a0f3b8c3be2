#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The quick suite under AddressSanitizer and UndefinedBehaviorSanitizer, and the tests of everything
# that has threads under ThreadSanitizer.
source "$(dirname "$0")/common.sh"

threaded="workers device_host swap placement executor optimizer"

run() {
    local name=$1 sanitizers=$2
    shift 2
    configure "$root/build-$name" --buildtype=debugoptimized "-Db_sanitize=$sanitizers" \
        -Db_lundef=false -Dcuda=disabled
    say "$sanitizers"
    ninja -C "$root/build-$name" | tail -1
    meson test -C "$root/build-$name" --print-errorlogs --timeout-multiplier 6 "$@"
}

export ASAN_OPTIONS=abort_on_error=1:detect_leaks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
run asan address,undefined --suite quick
# shellcheck disable=SC2086
run tsan thread $threaded
