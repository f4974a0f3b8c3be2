#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build the CPU kernels and their tests for AArch64 and run them under qemu-user: the NEON variant
# against the scalar one, and both against the x86 figures that the tests contain.
# neon.sh SOURCE_ROOT BUILD_DIR. Exits with 77 (skipped) where the compiler or the emulator is missing.
set -eu
root=$1
build=$2
compiler=${SLUICE_AARCH64_CC:-aarch64-linux-gnu-gcc}
emulator=${SLUICE_AARCH64_RUN:-qemu-aarch64}
for tool in "$compiler" "$emulator"; do
    command -v "$tool" >/dev/null 2>&1 || { echo "SKIP: $tool is not installed"; exit 77; }
done
mkdir -p "$build"
echo '#include <stdint.h>' | $compiler -x c -E -o /dev/null - 2>/dev/null ||
    { echo "SKIP: $compiler has no C library (libc6-dev-arm64-cross)"; exit 77; }
# At -O2 the two variants alone take a minute and a half to compile, at -O1 half a minute, with the
# same operations: the bits may not depend on it.
flags="-std=gnu17 -O1 -ffp-contract=off -fno-fast-math -fno-math-errno -D_GNU_SOURCE"
flags="$flags -Wall -Wextra -Werror -Wno-missing-field-initializers -fno-strict-aliasing"
flags="$flags -I$root/tests/kernels/cross -I$root"
compile() { # shellcheck disable=SC2086
    $compiler $flags -c "$root/$1.c" -o "$build/$(basename "$1").o"
}
compile kernels/cpu/variant_scalar &
scalar=$!
objects=
for unit in kernels/cpu/variant_neon kernels/cpu/isa kernels/cpu/optim base/error; do
    compile "$unit"
    objects="$objects $build/$(basename "$unit").o"
done
wait $scalar
for name in optim gradient optim_reference optim_q8; do
    # shellcheck disable=SC2086
    $compiler $flags -static "$root/tests/kernels/test_$name.c" $objects "$build/variant_scalar.o" \
        -lm -o "$build/test_$name"
    echo "== test_$name under $emulator"
    "$emulator" "$build/test_$name"
done
