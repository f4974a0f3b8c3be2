#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `meson install` into a staging folder: the program runs from there in another directory, and a C
# program builds and runs with what pkg-config says. Nothing installed names the tree that it was
# built from.
#
#     install.sh BUILD SOURCE COMPILER...
set -u
build=$(realpath "$1") source=$(realpath "$2")
shift 2
# shellcheck source=expect.sh
. "$(dirname "$(realpath "$0")")/expect.sh"

stage=$work/stage
expect 0 "" env DESTDIR="$stage" meson install -C "$build" --no-rebuild
mkdir elsewhere && cd elsewhere || exit 1
program=$(find "$stage" -path '*/bin/sluice')
expect 0 "" "$program" simulate --model tiny --hardware v100-dgx2
expect 0 "" "$program" plan --model tiny --device host

# Relative, because pkg-config does not quote a space in a folder's name.
description=$(find "$stage" -name sluice.pc)
export PKG_CONFIG_PATH=${description%/*}
library=$(dirname "${description%/*}")
version=$(pkg-config --modversion sluice)
prefix=../stage$(pkg-config --variable=prefix sluice)
cat >user.c <<'C'
#include <engine/optimizer.h>
#include <engine/sluice.h>
#include <stdio.h>
#include <string.h>
int main(int count, char **words)
{
    printf("%s\n", sl_version());
    return count == 2 && strcmp(sl_version(), words[1]) == 0 ? 0 : 1;
}
C
ask() { pkg-config --define-variable=prefix="$prefix" "$@" sluice; }
read -ra flags < <(ask --cflags)
read -ra libraries < <(ask --libs)
expect 0 "" "$@" user.c "${flags[@]}" "${libraries[@]}" -o user
expect 0 "" env LD_LIBRARY_PATH="$library" ./user "$version"

# Debug information may name the tree; it is not what runs.
for file in $(find "$stage" -type f -printf '%P\n'); do
    cp "$stage/$file" stripped
    strip -g stripped 2>/dev/null
    for tree in "$build" "$source"; do
        cases=$((cases + 1))
        grep -qF -- "$tree" stripped && fail "$file names $tree"
    done
done
finish
