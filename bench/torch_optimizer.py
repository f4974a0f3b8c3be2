# SPDX-License-Identifier: Apache-2.0
"""Steps of sluice.Optimizer beside those of torch.optim.AdamW, on the CPU.

    SLUICE_LIBRARY=build/libsluice.so python3 bench/torch_optimizer.py [PARAMETERS [ROUNDS]]

Parameters are 24 matrices. A round is three steps of every optimizer, one after the other; the best
of each counts in its round. Prints the median of the rounds' times, and of their ratios to torch's
fused AdamW on the same type of parameters.
"""
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import torch  # noqa: E402

import sluice  # noqa: E402

COUNT = int(float(sys.argv[1])) if len(sys.argv) > 1 else 32 << 20
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 9
HYPER = dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


def parameters(dtype):
    torch.manual_seed(1)
    params = [torch.nn.Parameter((torch.randn(COUNT // 24) * 0.05).to(dtype)) for _ in range(24)]
    for p in params:
        p.grad = (torch.randn(p.numel()) * 1e-3).to(dtype)
    return params


def torch_adamw(dtype, **how):
    return torch.optim.AdamW(parameters(dtype), **how, **HYPER)


def ours(dtype, **how):
    return sluice.Optimizer(parameters(dtype), **how, **HYPER)


def seconds(step):
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(title, optimizers):
    times = {name: [] for name in optimizers}
    for optimizer in optimizers.values():
        optimizer.step()
    for _ in range(ROUNDS):
        best = dict.fromkeys(optimizers, float("inf"))
        for _ in range(3):
            for name, optimizer in optimizers.items():
                best[name] = min(best[name], seconds(optimizer.step))
        for name in optimizers:
            times[name].append(best[name])
    base = next(iter(times.values()))
    print(f"{title:34} {'ms':>8} {'Gparam/s':>9} {'x':>6}")
    for name, own in times.items():
        middle = statistics.median(own)
        ratio = statistics.median(b / t for b, t in zip(base, own))
        print(f"  {name:32} {middle * 1e3:8.1f} {COUNT * 1e-9 / middle:9.3f} {ratio:6.2f}", flush=True)


print(f"{COUNT} parameters, torch {torch.__version__} with {torch.get_num_threads()} threads")
compare("f32 parameters", {
    "torch fused": torch_adamw(torch.float32, fused=True),
    "torch foreach": torch_adamw(torch.float32, foreach=True),
    "sluice": ours(torch.float32),
    "sluice, 8-bit state": ours(torch.float32, state="q8"),
})
compare("bf16 parameters", {
    "torch fused, bf16 alone": torch_adamw(torch.bfloat16, fused=True),
    "sluice, split master": ours(torch.bfloat16, master="split"),
    "sluice, split master, 8-bit state": ours(torch.bfloat16, master="split", state="q8"),
    "sluice, bf16 alone, bf16 state": ours(torch.bfloat16, master="none", state="bf16"),
})
