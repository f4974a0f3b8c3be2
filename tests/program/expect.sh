# SPDX-License-Identifier: Apache-2.0
# For the tests of this folder, which source it: a scratch folder as the working directory, and
# counted cases. The sourcing script ends with `finish`.
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice test.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0 cases=0

fail() {
    echo "FAILED: $*"
    sed 's/^/    /' err
    failures=$((failures + 1))
}

# expect CODE WORDS COMMAND...
expect() {
    local want=$1 words=$2 got=0
    shift 2
    cases=$((cases + 1))
    timeout -s KILL 100 "$@" >out 2>err </dev/null || got=$?
    [ $got -eq "$want" ] || fail "$* : exit code $got, not $want"
    [ -z "$words" ] || grep -qF -- "$words" err || fail "$* : no \"$words\""
}

# A sanitizer's shadow memory needs more than a limit on it before the program begins.
limits_memory() { ! grep -q __[at]san_init "$sluice"; }

finish() {
    echo "$cases cases, $failures failed"
    [ $failures -eq 0 ]
}
