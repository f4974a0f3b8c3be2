#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds with warnings as errors and runs the tests:
#
#     scripts/test.sh [SUITE...]      quick, full, gpu, long; default: quick and full
#
# Prints "N passed, N failed, N skipped" as its last line.
source "$(dirname "$0")/common.sh"

install_missing $base_packages
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(quick full)

configure "$build" --buildtype=release --werror
say "building"
built=$build/meson-logs/build.txt
ninja -C "$build" >"$built" || { grep -v '^\[' "$built" | tail -60; exit 1; }
tail -1 "$built"

say "testing: ${suites[*]}"
arguments=()
for suite in "${suites[@]}"; do arguments+=(--suite "$suite"); done
log=$build/meson-logs/test-run.txt
status=0
meson test -C "$build" --print-errorlogs "${arguments[@]}" 2>&1 | tee "$log" || status=$?

count() { sed -n "s/^$1: *\([0-9]*\).*/\1/p" "$log" | tail -1; }
passed=$(count Ok)
failed=$(($(count Fail) + $(count Timeout) + $(count 'Unexpected Pass')))
skipped=$(count Skipped)
[ "${passed:-0}" -gt 0 ] || { failed=$((failed + 1)); echo "no test ran" >&2; }
echo "${passed:-0} passed, $failed failed, ${skipped:-0} skipped"
[ "$failed" -eq 0 ] && [ "$status" -eq 0 ]
