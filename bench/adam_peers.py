# SPDX-License-Identifier: Apache-2.0
"""The optimizer phase of torch and DeepSpeed on the same machine: adam_peers.py COUNT THREADS.

Prints "peer<TAB>name" when a peer is ready, and "seconds<TAB>S" after every line "pass" on standard
input, which asks for one pass; any other line asks for the next peer. So bench/adam.c runs its own
phase between two passes of the peer. DeepSpeed's kernel is built by its own JIT; where it is not
installed or does not build, its rows are missing and the reason goes to standard error. Its whole
phase is what its ZeRO CPU-offload optimizer does with a 16-bit gradient that has arrived in host
memory: convert to fp32, norm, unscale and clip, Adam, copy to fp16.
"""
import os
import sys
import time

COUNT, THREADS = int(sys.argv[1]), int(sys.argv[2])
os.environ["OMP_NUM_THREADS"] = str(THREADS)
os.environ["OMP_WAIT_POLICY"] = "passive"  # threads that spin after a pass would take our cores
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch  # noqa: E402

torch.set_num_threads(THREADS)
HYPER = dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


def serve(name, run):
    run()
    print(f"peer\t{name}", flush=True)
    for line in iter(sys.stdin.readline, ""):
        if line.strip() != "pass":
            return
        start = time.perf_counter()
        run()
        print(f"seconds\t{time.perf_counter() - start:.6f}", flush=True)


def master():
    generator = torch.Generator().manual_seed(1)
    return torch.nn.Parameter(torch.randn(COUNT, generator=generator) * 0.05)


def serve_torch():
    for fused in (False, True):
        param = master()
        param.grad = torch.randn(COUNT) * 1e-3
        optimizer = torch.optim.AdamW([param], fused=fused, foreach=None if fused else True, **HYPER)
        serve(f"torch AdamW {'fused' if fused else 'foreach'}, f32 kernel", optimizer.step)
        del optimizer, param


def serve_deepspeed():
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    param = master()
    optimizer = DeepSpeedCPUAdam([param], adamw_mode=True, fp32_optimizer_states=True, **HYPER)
    gradient16 = (torch.randn(COUNT) * 1e-3).half()
    weight16 = param.detach().half()
    gradient32 = torch.empty(COUNT)
    param.grad = gradient32

    gradient32.copy_(gradient16)
    serve("DeepSpeed CPUAdam, f32 kernel", optimizer.step)

    def phase():
        gradient32.copy_(gradient16)
        norm = gradient32.norm().item()
        clip = max(1.0, (norm + 1e-6) / 1.0)
        gradient32.mul_(1.0 / clip)
        optimizer.step()
        weight16.copy_(param.data)

    serve("DeepSpeed whole phase", phase)


serve_torch()
try:
    serve_deepspeed()
except Exception as error:  # a missing package, a compiler that is not there, a build that fails
    print(f"DeepSpeed is not measured: {error}", file=sys.stderr)
