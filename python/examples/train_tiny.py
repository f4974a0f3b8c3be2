# SPDX-License-Identifier: Apache-2.0
"""A small network in bf16 whose optimizer state is in host memory, or on NVMe.   train_tiny.py [DIR]"""

import sys

import torch

import sluice


def main():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.GELU(),
                              torch.nn.Linear(256, 8)).to(torch.bfloat16)
    optimizer = sluice.Optimizer(net.named_parameters(), lr=3e-3, weight_decay=0.01,
                                 master="split", max_grad_norm=1.0,
                                 nvme_path=sys.argv[1] if len(sys.argv) > 1 else None)
    print(optimizer.plan(), end="")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    for i in range(200):
        x = torch.randn(64, 32)
        loss = torch.nn.functional.mse_loss(net(x.bfloat16()).float(), x[:, :8].sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if i % 50 == 49:
            print(f"step {i + 1}: loss {loss.item():.4f}, norm {optimizer.last.norm:.3f}, "
                  f"{optimizer.last.bytes_read} B read")
    optimizer.close()


if __name__ == "__main__":
    main()
