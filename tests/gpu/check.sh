#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The check of a machine with a GPU, which may be bare and offline.
#
#   tests/gpu/check.sh pack DIR [BUILD]   here: gather the built programs, the CUDA module and the
#                                         shared libraries that they need (some 30 MiB) in DIR
#   DIR/check.sh run [OUT] [SECONDS]      there: run everything; results in OUT (default DIR/out),
#                                         within SECONDS (default 480)
#   tests/gpu/check.sh run ...            the same from a build on this machine
#
# 1. gpu_check: every kernel against the host device, and its time against its floor, by ceilings
#    measured in the run. 2. 50 training steps on both devices, losses compared. 3. bench/tflops,
#    where it is built. It prints tables and writes OUT/*.json; exit code 0: all agreed.
#
# On the machine: an NVIDIA driver, and cuBLASLt of the module's CUDA version (from a toolkit or from
# PyTorch's wheels: both are looked for). No compiler, no network, no package is needed.
set -u
here=$(cd "$(dirname "$0")" && pwd)

say() { printf '== %s\n' "$*"; }
die() {
    echo "check.sh: $*" >&2
    exit 1
}

# Libraries beside the program, except those that belong to the machine: libc and the driver.
copy_libraries() {
    local target=$1
    shift
    ldd "$@" 2>/dev/null | awk '/=> \// { print $3 }' | sort -u | while read -r library; do
        case ${library##*/} in
        libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | ld-linux*) ;;
        libcuda.so* | libcublas* | libnv*) ;;
        *) cp -L "$library" "$target/" ;;
        esac
    done
}

pack() {
    local dir=$1 root build
    root=$(cd "$here/../.." && pwd)
    build=${2:-$root/build}
    [ -x "$build/tests/gpu/gpu_check" ] || die "$build holds no gpu_check; build the project first"
    [ -f "$build/kernels/cuda/libsluice-cuda.so" ] || die "$build has no CUDA module (nvcc missing?)"
    mkdir -p "$dir/bin" "$dir/lib" || die "cannot write $dir"
    cp "$build/engine/program/sluice" "$build/tests/gpu/gpu_check" "$dir/bin/"
    [ -x "$build/bench/tflops" ] && cp "$build/bench/tflops" "$dir/bin/"
    cp "$build/kernels/cuda/libsluice-cuda.so" "$dir/lib/"
    cp "$root/docs/config.md" "$dir/text.md"
    cp "$here/check.sh" "$dir/"
    copy_libraries "$dir/lib" "$dir"/bin/*
    strip --strip-debug "$dir"/bin/* "$dir"/lib/*.so* 2>/dev/null
    du -sh "$dir"
}

# Folders that hold cuBLASLt: toolkits, then Python wheels.
cublas_folders() {
    local major=$1 folder
    for folder in "${CUDA_HOME:-/usr/local/cuda}"/lib64 /usr/local/cuda*/lib64 \
        $(python3 -c 'import sys; print("\n".join(sys.path))' 2>/dev/null | sed 's|$|/nvidia|'); do
        [ -d "$folder" ] && find -L "$folder" -maxdepth 3 -name "libcublasLt.so.$major" 2>/dev/null
    done | head -n 1 | xargs -r dirname
}

losses() { sed -n 's/.*"loss": \([-0-9.e+]*\),.*/\1/p' "$1/log.jsonl"; }

train() {
    local device=$1
    timeout 120 "$bin/sluice" train --model tiny --data "$text" --out "$out/train-$device" --steps 50 --seed 1 \
        --device "$device" --set train.precision=bf16 --set train.sequence_length=256 \
        --set train.micro_batch=4 >"$out/train-$device.log" 2>&1 ||
        { tail -n 5 "$out/train-$device.log"; return 1; }
}

# The host computes in f32, CUDA rounds activations to bf16 and the runs drift apart: 2 % of the
# loss after 50 steps.
compare_training() {
    train host && train cuda || return 1
    losses "$out/train-host" >"$out/losses-host"
    losses "$out/train-cuda" >"$out/losses-cuda"
    paste "$out/losses-host" "$out/losses-cuda" | awk -v json="$out/train.json" '
        { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d
          if (NR == 1 || NR % 10 == 0) printf "step %3d  host %.4f  cuda %.4f\n", NR, $1, $2 }
        END { passed = NR == 50 && worst <= 0.02
              printf "%d steps, losses differ by at most %.3g of the loss: %s\n", NR, worst,
                     passed ? "ok" : "FAILED"
              printf "{\"steps\": %d, \"worst_relative_difference\": %g, \"passed\": %s}\n", NR,
                     worst, passed ? "true" : "false" > json
              exit !passed }'
}

run() {
    out=${1:-$here/out}
    local limit=${2:-480} start=$SECONDS status=0
    if [ -d "$here/bin" ]; then
        bin=$here/bin text=$here/text.md
        export SLUICE_CUDA_MODULE=${SLUICE_CUDA_MODULE:-$here/lib/libsluice-cuda.so}
        export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    else
        local root build
        root=$(cd "$here/../.." && pwd) build=${BUILD:-$root/build}
        bin=$out/bin text=$root/docs/config.md
        mkdir -p "$bin" || die "cannot write $out"
        for program in engine/program/sluice tests/gpu/gpu_check bench/tflops; do
            [ -x "$build/$program" ] && ln -sf "$build/$program" "$bin/"
        done
        export SLUICE_CUDA_MODULE=${SLUICE_CUDA_MODULE:-$build/kernels/cuda/libsluice-cuda.so}
    fi
    mkdir -p "$out" || die "cannot write $out"
    rm -rf "$out"/train-* "$out"/*.json
    [ -x "$bin/gpu_check" ] || die "no gpu_check in $bin"
    local major folder
    major=$(ldd "$SLUICE_CUDA_MODULE" 2>/dev/null | sed -n 's/.*libcublasLt\.so\.\([0-9]*\).*/\1/p')
    folder=$(cublas_folders "${major:-13}")
    [ -n "$folder" ] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder

    command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total \
        --format=csv,noheader
    say "kernels against the host, and their times"
    # shellcheck disable=SC2086 # CHECK_ARGUMENTS are words: --small for the simulated device
    timeout $((limit / 2)) "$bin/gpu_check" ${CHECK_ARGUMENTS:-} --json "$out/kernels.json" ||
        { status=1; echo "gpu_check failed ($?)"; }
    say "50 training steps on both devices"
    compare_training || status=1
    if [ -x "$bin/tflops" ]; then
        say "training, from 124M parameters up"
        timeout $((limit - (SECONDS - start) + 1)) "$bin/tflops" --device cuda \
            --json "$out/tflops.json" || { status=1; echo "tflops failed ($?)"; }
    else
        say "bench/tflops is not here: skipped"
    fi
    say "$([ "$status" = 0 ] && echo passed || echo FAILED), results in $out"
    return $status
}

case ${1:-} in
pack)
    [ $# -ge 2 ] || die "usage: check.sh pack DIR [BUILD]"
    pack "$2" "${3:-}"
    ;;
run)
    shift
    run "$@"
    ;;
*) die "usage: check.sh pack DIR [BUILD] | check.sh run [OUT] [SECONDS]" ;;
esac
