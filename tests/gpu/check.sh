#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The check of a machine with a GPU, which may be bare and offline.
#
#   tests/gpu/check.sh pack DIR [BUILD]   here: gather the built programs, the CUDA module and the
#                                         shared libraries that they need, compressed, in DIR
#   DIR/check.sh run [OUT] [SECONDS]      there: run everything; results in OUT (default $OUT, else
#                                         DIR/out), within SECONDS (default 480)
#   tests/gpu/check.sh run ...            the same from a build on this machine
#
# 1. gpu_check: every kernel against the host device, and its time against its floor, by ceilings
#    measured in the run. 2. 50 training steps on both devices, losses compared, and a greedy text
#    of each. 3. compute-sanitizer over every kernel at small shapes, where it is at hand. 4.
#    bench-tflops from 124M parameters up, where it is built, while time is left. It prints tables
#    and leaves five files at most in OUT: report.txt, kernels.json, train.json, tflops.json,
#    sanitizer.txt; exit code 0: all agreed.
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
    [ -x "$build/bench/bench-tflops" ] && cp "$build/bench/bench-tflops" "$dir/bin/"
    cp "$build/kernels/cuda/libsluice-cuda.so" "$dir/lib/"
    cp "$root/docs/config.md" "$dir/text.md"
    cp "$here/check.sh" "$dir/"
    copy_libraries "$dir/lib" "$dir"/bin/*
    strip --strip-debug "$dir"/bin/* "$dir"/lib/*.so* 2>/dev/null
    gzip -9f "$dir"/bin/* "$dir"/lib/*
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
    timeout 120 "$bin/sluice" train --model tiny --data "$text" --out "$work/train-$device" --steps "$steps" --seed 1 \
        --device "$device" --set train.precision=bf16 --set train.sequence_length=256 \
        --set train.micro_batch=4 >"$work/train-$device.log" 2>&1 ||
        { tail -n 5 "$work/train-$device.log"; return 1; }
}

generate() {
    local checkpoint
    checkpoint=$(find "$work/train-cuda" -maxdepth 1 -name 'checkpoint-*' | sort | tail -n 1)
    timeout 60 "$bin/sluice" generate --model "$checkpoint" --prompt "The key" --max-tokens 32 \
        --temperature 0 --device "$1" --set train.precision=fp32 2>>"$work/generate.log"
}

# In fp32 the most probable tokens are the same ones.
compare_texts() {
    local host cuda
    if ! host=$(generate host) || ! cuda=$(generate cuda); then
        tail -n 5 "$work/generate.log"
        return 1
    fi
    if [ -n "$host" ] && [ "$host" = "$cuda" ]; then
        echo "one text on both devices: ok"
        return 0
    fi
    printf 'texts differ: FAILED\nhost: %s\ncuda: %s\n' "$host" "$cuda"
    return 1
}

# A tool that cannot run on the machine is named and is no failure; what it finds is one.
sanitize() {
    local tool status=0 code
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here: skipped"; return 0; }
    for tool in memcheck racecheck; do
        # Refused calls are no finding: some virtual machines let no tool at the device.
        set -- --tool "$tool" --error-exitcode 9
        [ "$tool" = memcheck ] && set -- "$@" --report-api-errors no
        timeout 60 compute-sanitizer "$@" "$bin/gpu_check" --small >"$work/$tool.log" 2>&1
        code=$?
        grep -q 'Device not supported' "$work/$tool.log" && code=refused
        { echo "== $tool: exit code $code"; tail -n 40 "$work/$tool.log"; } >>"$out/sanitizer.txt"
        case $code in
        0) echo "$tool: nothing found" ;;
        9) echo "$tool: FAILED"; grep -m 5 '=========' "$work/$tool.log"; status=1 ;;
        refused) echo "$tool: the device refuses the tool here" ;;
        124) echo "$tool: did not end within 60 s" ;;
        *) echo "$tool: could not run (exit code $code)"; grep -m 2 '=========' "$work/$tool.log" ;;
        esac
    done
    return $status
}

# One model after the other, larger ones while time is left.
throughput() {
    local end=$1 status=0 separator="[" left model
    # shellcheck disable=SC2086 # words
    for model in ${CHECK_MODELS:-gpt2-124m gpt2-1.5b llama-3b zero-offload-4b llama-8b zero-offload-10b}; do
        left=$((end - SECONDS))
        [ "$left" -ge 20 ] || { echo "$model and larger: no time left"; break; }
        # shellcheck disable=SC2086 # words
        timeout "$left" "$bin/bench-tflops" --model "$model" --device cuda --steps 5 --warm 2 \
            --set train.precision=bf16 ${CHECK_BENCH:-} --json >"$work/tflops.one" 2>"$work/tflops.log"
        case $? in
        0)
            { printf '%s\n' "$separator"; cat "$work/tflops.one"; } >>"$out/tflops.json"
            cat "$work/tflops.one"
            separator=,
            ;;
        124) echo "$model: not done when time was up" ;;
        *) echo "$model: FAILED"; tail -n 3 "$work/tflops.log"; status=1 ;;
        esac
    done
    [ "$separator" = , ] && echo "]" >>"$out/tflops.json"
    return $status
}

# The host computes in f32, CUDA rounds activations to bf16 and the runs drift apart: 2 % of the
# loss after 50 steps.
compare_training() {
    train host && train cuda || return 1
    losses "$work/train-host" >"$work/losses-host"
    losses "$work/train-cuda" >"$work/losses-cuda"
    paste "$work/losses-host" "$work/losses-cuda" | awk -v json="$out/train.json" -v steps="$steps" '
        { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d
          if (NR == 1 || NR % 10 == 0) printf "step %3d  host %.4f  cuda %.4f\n", NR, $1, $2 }
        END { passed = NR == steps && worst <= 0.02
              printf "%d steps, losses differ by at most %.3g of the loss: %s\n", NR, worst,
                     passed ? "ok" : "FAILED"
              printf "{\"steps\": %d, \"worst_relative_difference\": %g, \"passed\": %s}\n", NR,
                     worst, passed ? "true" : "false" > json
              exit !passed }'
}

run() {
    out=${1:-${OUT:-$here/out}}
    steps=${CHECK_STEPS:-50}
    local limit=${2:-480} start=$SECONDS status=0 libraries=
    work=$(mktemp -d) || die "no temporary folder"
    trap 'rm -rf "$work"' EXIT
    if [ -d "$here/bin" ]; then
        bin=$work/bin text=$here/text.md
        cp -r "$here/bin" "$here/lib" "$work/" || die "cannot unpack to $work"
        gunzip "$work"/bin/* "$work"/lib/* || die "cannot unpack to $work"
        chmod +x "$bin"/*
        export SLUICE_CUDA_MODULE=${SLUICE_CUDA_MODULE:-$work/lib/libsluice-cuda.so}
        libraries=$work/lib
    else
        local root build
        root=$(cd "$here/../.." && pwd) build=${BUILD:-$root/build}
        bin=$work/bin text=$root/docs/config.md
        mkdir -p "$bin" || die "cannot write $work"
        for program in engine/program/sluice tests/gpu/gpu_check bench/bench-tflops; do
            [ -x "$build/$program" ] && ln -sf "$build/$program" "$bin/"
        done
        export SLUICE_CUDA_MODULE=${SLUICE_CUDA_MODULE:-$build/kernels/cuda/libsluice-cuda.so}
    fi
    mkdir -p "$out" || die "cannot write $out"
    rm -f "$out"/*.json "$out"/report.txt "$out"/sanitizer.txt
    exec > >(tee "$out/report.txt") 2>&1
    [ -x "$bin/gpu_check" ] || die "no gpu_check in $bin"
    local major folder
    major=$(ldd "$SLUICE_CUDA_MODULE" 2>/dev/null | sed -n 's/.*libcublasLt\.so\.\([0-9]*\).*/\1/p')
    folder=$(cublas_folders "${major:-13}")
    command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total \
        --format=csv,noheader
    # Named last: python3 and nvidia-smi of the machine have libraries of their own.
    [ -n "$libraries" ] && export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    [ -n "$folder" ] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    # Containers mount the driver where the loader may not look.
    [ -d /usr/local/nvidia/lib64 ] &&
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64

    say "kernels against the host, and their times"
    # shellcheck disable=SC2086 # CHECK_ARGUMENTS are words: --small (and CHECK_STEPS=2) for the simulated device
    timeout $((limit / 2)) "$bin/gpu_check" ${CHECK_ARGUMENTS:-} --json "$out/kernels.json" ||
        { echo "gpu_check failed ($?)"; status=1; }
    say "$steps training steps on both devices, and a text"
    if compare_training; then compare_texts || status=1; else status=1; fi
    if [ -z "${CHECK_ARGUMENTS:-}" ]; then
        say "compute-sanitizer"
        sanitize || status=1
    fi
    if [ -x "$bin/bench-tflops" ]; then
        say "training, from 124M parameters up"
        throughput $((start + limit)) || status=1
    else
        say "bench-tflops is not here: skipped"
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
