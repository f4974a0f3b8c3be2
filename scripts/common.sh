# SPDX-License-Identifier: Apache-2.0
# Shared by demo.sh and test.sh: packages, configuration, build. Sourced, not run.

set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${SLUICE_BUILD:-$root/build}

say() { printf '\n== %s\n' "$*"; }

base_packages="build-essential meson ninja-build pkg-config liburing-dev libhwloc-dev libopenblas-dev
libjemalloc-dev libjansson-dev libyaml-dev libxxhash-dev libpcre2-dev libutf8proc-dev libcmocka-dev"

other_systems() {
    cat >&2 <<'TEXT'
This script installs packages with apt. On other systems install these, then run it again:

  Fedora  gcc gcc-c++ meson ninja-build pkgconf liburing-devel hwloc-devel openblas-devel
          jemalloc-devel jansson-devel libyaml-devel xxhash-devel pcre2-devel utf8proc-devel
          libcmocka-devel
  Arch    base-devel meson ninja pkgconf liburing hwloc openblas jemalloc jansson libyaml xxhash
          pcre2 libutf8proc cmocka
TEXT
}

# install_missing PACKAGE...: apt-get install those that are not there.
install_missing() {
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        # Another system: go on if what the build needs is there.
        if command -v meson >/dev/null && pkg-config --exists liburing hwloc openblas jansson; then
            return
        fi
        other_systems
        exit 2
    fi
    local missing="" package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
            missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    say "installing$missing"
    local as=""
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "not root and no sudo: install these packages, then run this again:$missing" >&2
            exit 2
        fi
        as=sudo
    fi
    $as env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    # shellcheck disable=SC2086
    $as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing \
        >/dev/null
}

# configure DIR [MESON OPTION...]: once; afterwards meson itself sees what has changed. A folder that
# was configured without --werror, by the demo, gets it where it is asked for.
configure() {
    local directory=$1
    shift
    if [ ! -f "$directory/build.ninja" ]; then
        say "configuring $(basename "$directory")"
        meson setup "$directory" "$root" "$@" | tail -25
    elif [[ " $* " == *" --werror "* ]] &&
        ! grep -qi 'werror = true' "$directory/meson-private/cmd_line.txt"; then
        meson configure "$directory" -Dwerror=true
    fi
}
