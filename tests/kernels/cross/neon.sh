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
flags="-std=gnu17 -O2 -ffp-contract=off -fno-fast-math -fno-math-errno -D_GNU_SOURCE"
flags="$flags -Wall -Wextra -Werror -Wno-missing-field-initializers -I$root/tests/kernels/cross -I$root"
objects=
for unit in kernels/cpu/isa kernels/cpu/optim kernels/cpu/variant_scalar kernels/cpu/variant_neon \
    base/error; do
    object=$build/$(basename "$unit").o
    $compiler $flags -fno-strict-aliasing -c "$root/$unit.c" -o "$object"
    objects="$objects $object"
done
for name in optim gradient optim_reference optim_q8; do
    $compiler $flags -fno-strict-aliasing -static "$root/tests/kernels/test_$name.c" $objects -lm \
        -o "$build/test_$name"
    echo "== test_$name under $emulator"
    "$emulator" "$build/test_$name"
done
