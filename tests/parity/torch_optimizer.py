# SPDX-License-Identifier: Apache-2.0
"""sluice.Optimizer against torch.optim and against itself.   SLUICE_LIBRARY=... torch_optimizer.py"""

import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch  # noqa: E402

import sluice  # noqa: E402

STEPS = 200


def model(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.GELU(),
                               torch.nn.Linear(300, 300), torch.nn.GELU(),
                               torch.nn.Linear(300, 10)).to(dtype)


def batch(i, dtype=torch.float32):
    g = torch.Generator().manual_seed(i)
    x = torch.randn(32, 40, generator=g)
    return x.to(dtype), x[:, :10].sin()


def loss_of(net, i, dtype=torch.float32):
    x, y = batch(i, dtype)
    return torch.nn.functional.mse_loss(net(x).float(), y)


def train(net, optimizer, first=0, last=STEPS, dtype=torch.float32):
    for i in range(first, last):
        optimizer.zero_grad()
        loss_of(net, i, dtype).backward()
        optimizer.step()
    return net


def flat(net):
    return torch.cat([p.detach().float().reshape(-1) for p in net.parameters()])


def same_gradients(make_ours, make_theirs, clip=0.0):
    """Both optimizers get the same gradients, so that a model's own chaos is not measured."""
    a, b = model(), model()
    ours, theirs = make_ours(a), make_theirs(b)
    ours.max_grad_norm = clip
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS) for o in (ours, theirs)]
    for i in range(STEPS):
        b.zero_grad()
        loss_of(b, i).backward()
        for p, q in zip(a.parameters(), b.parameters()):
            p.grad = q.grad.clone()
        if clip:
            norm = torch.nn.utils.clip_grad_norm_(b.parameters(), clip)
        ours.step()
        theirs.step()
        if clip:
            assert abs(ours.last.norm / float(norm) - 1) < 1e-5, (ours.last.norm, norm)
        for s in schedules:
            s.step()
    moved = (flat(b) - flat(model())).abs().max()
    return float((flat(a) - flat(b)).abs().max() / moved)


def against_torch():
    groups = lambda net: [{"params": list(net.parameters())[:2], "weight_decay": 0.0},  # noqa: E731
                          {"params": list(net.parameters())[2:], "lr": 3e-3}]
    cases = {
        "adamw": (dict(lr=1e-3, weight_decay=0.1), torch.optim.AdamW, dict(lr=1e-3, weight_decay=0.1)),
        "adam": (dict(lr=1e-3, weight_decay=0.01), torch.optim.Adam, dict(lr=1e-3, weight_decay=0.01)),
        "sgd": (dict(lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.01), torch.optim.SGD,
                dict(lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.01)),
        "adagrad": (dict(lr=1e-2, eps=1e-10, weight_decay=0.0), torch.optim.Adagrad,
                    dict(lr=1e-2, eps=1e-10, weight_decay=0.0)),
    }
    for name, (ours, cls, theirs) in cases.items():
        for clip in (0.0, 0.05):
            worst = same_gradients(lambda n: sluice.Optimizer(groups(n), algorithm=name, **ours),
                                   lambda n: cls(groups(n), **theirs), clip)
            # Each step rounds weights of about 1 to 2^-24 in both; 200 roundings that all fall one
            # way are 1.2e-5, of weights that moved by 0.1 and more.
            print(f"{name}, clip {clip}: worst difference {worst:.2e} of the farthest way moved")
            assert worst < 1e-4, worst


def bf16():
    """An f32 master keeps the steps that bf16 weights round away."""
    gap = {}
    reference = flat(model())
    a = model(torch.bfloat16)
    train(a, sluice.Optimizer(a.parameters(), lr=1e-4), dtype=torch.bfloat16)
    b = model(torch.bfloat16)
    train(b, torch.optim.AdamW(b.parameters(), lr=1e-4), dtype=torch.bfloat16)
    c = model()
    train(c, torch.optim.AdamW(c.parameters(), lr=1e-4))
    for name, net in (("sluice, f32 master", a), ("torch, bf16 alone", b)):
        gap[name] = float((flat(net) - flat(c)).norm() / (flat(c) - reference).norm())
        print(f"bf16 weights, {name}: {gap[name]:.3f} of the way from the f32 run")
    assert gap["sluice, f32 master"] < 0.8 * gap["torch, bf16 alone"], gap
    d = model(torch.bfloat16)
    train(d, sluice.Optimizer(d.parameters(), lr=1e-4, master="split"), dtype=torch.bfloat16)
    assert torch.equal(flat(a), flat(d)), "split and plain masters differ"


def placement_and_resume(folder):
    for dtype, options in ((torch.float32, {}), (torch.bfloat16, {}),
                           (torch.bfloat16, dict(state="q8", master="split")),
                           (torch.bfloat16, dict(state="bf16", master="none")),
                           (torch.float16, dict(algorithm="lion", lr=1e-4))):
        options = dict(max_grad_norm=1.0, **options)
        host = model(dtype)
        train(host, sluice.Optimizer(host.parameters(), **options), 0, 20, dtype)
        for how in ("nvme", "state_dict", "file"):
            net = model(dtype)
            first = sluice.Optimizer(net.parameters(), nvme_path=folder if how == "nvme" else None,
                                     sub_group=65536, threads=1, **options)
            train(net, first, 0, 8, dtype)
            if how == "state_dict":
                torch.save(first.state_dict(), os.path.join(folder, "dict"))
                second = sluice.Optimizer(net.parameters(), **options)
                second.load_state_dict(torch.load(os.path.join(folder, "dict")))
            elif how == "file":
                first.save_state(os.path.join(folder, "state"))
                second = sluice.Optimizer(net.parameters(), nvme_path=folder, **options)
                second.load_state(os.path.join(folder, "state"))
            else:
                second = first
                assert first.last.bytes_read > 0
            train(net, second, 8, 20, dtype)
            assert torch.equal(flat(host), flat(net)), (dtype, options, how)
            first.close()
            second.close()
    print("NVMe, state_dict and state file: bitwise equal to the unbroken run on the host")


def from_torch():
    """A run of torch.optim.AdamW goes on here."""
    a = model()
    theirs = torch.optim.AdamW(a.parameters(), lr=1e-3)
    train(a, theirs, 0, 50)
    b = model()
    b.load_state_dict(a.state_dict())
    ours = sluice.Optimizer(b.parameters(), lr=1.0)
    ours.load_state_dict(theirs.state_dict())
    assert ours.param_groups[0]["lr"] == 1e-3
    train(a, theirs, 50, 51)
    train(b, ours, 50, 51)
    worst = float((flat(a) - flat(b)).abs().max())
    assert worst < 1e-7, worst  # an ulp of the weights, below 1


def grad_scaler():
    a, b = model(), model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    scaled, plain = sluice.Optimizer(a.parameters()), sluice.Optimizer(b.parameters())
    for i in range(10):
        scaled.zero_grad()
        scaler.scale(loss_of(a, i)).backward()
        if i == 5:
            next(a.parameters()).grad[0, 0] = float("inf")
            before = flat(a)
        if i == 7:
            scaler.unscale_(scaled)
        scaler.step(scaled)
        scaler.update()
        if i == 5:
            assert torch.equal(before, flat(a)) and scaled.last.skipped
            assert scaler.get_scale() == 512.0
            continue
        plain.zero_grad()
        loss_of(b, i).backward()
        plain.step()
    # Scaling by a power of two is exact.
    assert torch.equal(flat(a), flat(b))
    next(a.parameters()).grad[0, 0] = float("nan")
    before = flat(a)
    scaled.step()
    assert scaled.last.skipped and scaled.skipped_parameter == "param.0"
    assert torch.equal(before, flat(a))


def manners():
    net = model()
    optimizer = sluice.Optimizer(net.named_parameters())
    assert "AdamW" in optimizer.plan()
    extra = torch.nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [("extra", extra)], "lr": 0.5})

    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, 0)
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    assert optimizer.step(closure).item() < first
    assert torch.equal(extra.detach(), torch.ones(3))  # no gradient: left alone
    for bad, kind in ((lambda: optimizer.add_param_group({"params": [torch.ones(2)]}), RuntimeError),
                      (lambda: sluice.Optimizer(net.parameters(), algorithm="x"), ValueError),
                      (lambda: sluice.Optimizer([torch.ones(2, dtype=torch.float64)]), TypeError),
                      (lambda: sluice.Optimizer(net.parameters(), lr=-1.0).seal(), sluice.Error),
                      (lambda: sluice.Optimizer(net.parameters(), host_memory=1000).seal(),
                       sluice.Error)):
        try:
            bad()
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__}")
    optimizer.close()
    try:
        optimizer.step()
        raise AssertionError("a step after close")
    except RuntimeError as error:
        assert "closed" in str(error)
    strided = torch.nn.Parameter(torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last))
    plain = torch.nn.Parameter(strided.detach().clone(memory_format=torch.contiguous_format))
    for p in (strided, plain):
        o = sluice.Optimizer([p])
        (p * torch.arange(288.0).view(8, 4, 3, 3)).sum().backward()
        o.step()
    assert torch.equal(strided, plain)


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        against_torch()
        bf16()
        placement_and_resume(folder)
    from_torch()
    grad_scaler()
    manners()
    print("sluice.Optimizer: all as it should be")


if __name__ == "__main__":
    main()
