# SPDX-License-Identifier: Apache-2.0
"""Sluice's CPU optimizer as a torch.optim.Optimizer."""

import ctypes
import os
import weakref

import torch

from . import library
from .library import ALGORITHMS, ARRAYS, BF16, F16, F32, MASTERS, STATES

_DTYPES = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16}


class Optimizer(torch.optim.Optimizer):
    """One of Sluice's optimizers under a PyTorch model.

    params           tensors, named tensors, or groups of them, as for every torch optimizer
    algorithm        "adamw", "adam", "lion", "adagrad", "sgd"
    state            "f32", "bf16" or "q8": how moments are kept
    master           "plain" (f32 copy), "split" (bf16 alone: 2 bytes, same bits), "none" (bf16 alone,
                     stochastic rounding). Parameters in f32 need none
    nvme_path        a directory, or several, for the state; None: host memory
    host_memory      bytes of host memory that the optimizer may take; 0: no limit
    max_grad_norm    clip to this norm over all parameters; 0: no clipping
    threads, sub_group, buffers, seed, unpinned
                     as in engine/optimizer.h

    Memory is taken by the first step, or by seal(); no parameter may be added after it. plan() says
    how much before. Tensors on a GPU are copied to page-locked memory and back around the update.
    """

    _step_supports_amp_scaling = True  # GradScaler hands grad_scale and found_inf to step()

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, *,
                 algorithm="adamw", momentum=0.0, nesterov=False, bias_correction=True,
                 state="f32", master="plain", nvme_path=None, host_memory=0, max_grad_norm=0.0,
                 threads=0, sub_group=0, buffers=0, seed=0, unpinned=False):
        for name, value, known in (("algorithm", algorithm, ALGORITHMS), ("state", state, STATES),
                                   ("master", master, MASTERS)):
            if value not in known:
                raise ValueError(f"{name}={value!r}: one of {', '.join(known)}")
        paths = [] if nvme_path is None else nvme_path
        paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._options = library.Options(
            algorithm=ALGORITHMS[algorithm], state=STATES[state], master=MASTERS[master],
            placement=1 if paths else 0, path_count=len(paths), host_bytes_max=host_memory,
            sub_group_elements=sub_group, buffers=buffers, threads=threads, unpinned=unpinned,
            seed=seed)
        if paths:
            self._options.paths = (ctypes.c_char_p * len(paths))(*[os.fsencode(p) for p in paths])
        self._state_kind = state
        self._handle = None
        self._sealed = False
        self.max_grad_norm = max_grad_norm
        self.last = None  # library.Result of the last step
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps,
                                      weight_decay=weight_decay, momentum=momentum,
                                      nesterov=nesterov, bias_correction=bias_correction))

    # ---- parameters, plan, memory ----

    def add_param_group(self, param_group):
        if self._sealed:
            raise RuntimeError("add_param_group after the first step: all memory has been taken; "
                               "make another optimizer")
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dtype not in _DTYPES:
                raise TypeError(f"parameter of {p.dtype}: float32, bfloat16 and float16 are "
                                "supported")
            if p.is_sparse or p.numel() == 0:
                raise TypeError("sparse and empty parameters are not supported")
        self._handle = None

    @staticmethod
    def _group_struct(group):
        return library.Group(float(group["lr"]), group["betas"][0], group["betas"][1],
                             group["eps"], group["weight_decay"], group["momentum"],
                             group["nesterov"], group["bias_correction"])

    def _build(self):
        if self._handle is not None:
            return
        handle = library.Handle(self._options)
        self._tensors, self._names = [], []
        for group in self.param_groups:
            index = handle.group_add(self._group_struct(group))
            names = group.get("param_names")
            for k, p in enumerate(group["params"]):
                name = names[k] if names else f"param.{len(self._tensors)}"
                handle.add(name, p.numel(), _DTYPES[p.dtype], index)
                self._tensors.append(p)
                self._names.append(name)
        self._handle = handle

    def plan(self):
        """The memory that the optimizer takes, as text. Takes none of it."""
        self._build()
        return self._handle.plan_text()

    def seal(self):
        """Take all memory now instead of in the first step."""
        if self._sealed:
            return
        self._build()
        self._handle.seal()
        self._sealed = True
        count = len(self._tensors)
        self._gradients = (ctypes.c_void_p * count)()
        self._weights = (ctypes.c_void_p * count)()
        self._dtypes = (ctypes.c_int * count)()
        self._pinned = {}
        self._finalizer = weakref.finalize(self, self._handle.close)

    def close(self):
        """Give memory, threads and NVMe files back; the optimizer cannot be used afterwards."""
        if self._sealed:
            self._finalizer()

    # ---- the step ----

    def _host(self, index, kind, tensor, copy):
        """The page-locked buffer of a tensor on a device, filled from it where `copy`."""
        buffer = self._pinned.get((index, kind))
        if buffer is None or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
            self._pinned[(index, kind)] = buffer
        if copy:
            buffer.copy_(tensor.reshape(-1), non_blocking=True)
        return buffer

    def _gather(self):
        """Fill the arrays of pointers. Returns what must live, or be copied back, after the step."""
        kept, devices = [], set()
        for i, p in enumerate(self._tensors):
            g = p.grad
            self._gradients[i] = self._weights[i] = None
            if g is None:
                continue
            if g.is_sparse:
                raise RuntimeError(f"{self._names[i]}: sparse gradients are not supported")
            if g.dtype not in _DTYPES:
                raise TypeError(f"{self._names[i]}: gradient of {g.dtype}: float32, bfloat16 and "
                                "float16 are supported")
            if p.device.type not in ("cpu", "cuda"):
                raise RuntimeError(f"{self._names[i]} is on {p.device}: cpu and cuda are supported")
            weight = p.detach()
            on_device = p.device.type != "cpu"
            if on_device:
                g = self._host(i, "gradient", g, True)
                weight = self._host(i, "weight", weight, True)
                devices.add(p.device)
            else:
                if not weight.is_contiguous():
                    weight = weight.contiguous()
                # Elements in the same order as the weight's; a view where they are already.
                g = g.contiguous()
            self._gradients[i], self._weights[i] = g.data_ptr(), weight.data_ptr()
            self._dtypes[i] = _DTYPES[g.dtype]
            back = on_device or weight.data_ptr() != p.data_ptr()
            kept.append((p, g, weight, back))
        for device in devices:
            torch.cuda.synchronize(device)
        return kept

    @torch.no_grad()
    def step(self, closure=None):
        """Do one update. Gradients that are not finite change nothing: `last.skipped`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.seal()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and float(found_inf) != 0:
            self.last = library.Result(nonfinite_param=-1, skipped=True)
            return loss
        scale = getattr(self, "grad_scale", None)
        for i, group in enumerate(self.param_groups):
            self._handle.group_set(i, self._group_struct(group))
        kept = self._gather()
        self.last = self._handle.step(library.Step(
            self._gradients, self._dtypes, self._weights, float(self.max_grad_norm or 0),
            1.0 if scale is None else 1.0 / float(scale), 0.0))
        if not self.last.skipped:
            for p, _, weight, back in kept:
                if back:
                    p.copy_(weight.view(p.shape), non_blocking=True)
                else:
                    torch.autograd.graph.increment_version(p)
        for device in {p.device for p, _, _, back in kept if back and p.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return loss

    @property
    def skipped_parameter(self):
        """Name of the first parameter whose gradient was not finite in the last step, or None."""
        if self.last is None or self.last.nonfinite_param < 0:
            return None
        return self._names[self.last.nonfinite_param]

    def weights_changed(self):
        """Say that 16-bit weights were changed from outside: masters are taken from them anew."""
        for i in range(len(self._tensors) if self._sealed else 0):
            self._handle.weights_changed(i)

    # ---- state ----

    def _array_dtype(self, array, entry):
        if array.startswith("master") and entry == 2:
            return torch.int16
        return {4: torch.float32, 2: torch.bfloat16, 1: torch.uint8}[entry]

    def state_dict(self):
        """As every torch optimizer's, with exp_avg, exp_avg_sq, master and their scales as they are
        kept. It is as large as the state: save_state() writes it without that memory."""
        self.seal()
        result = {"state": {}, "param_groups": []}
        for i, p in enumerate(self._tensors):
            updates, master_set = self._handle.updates(i)
            if not updates and not master_set:
                continue
            entry = {"step": torch.tensor(updates, dtype=torch.int64)}
            for k, array in enumerate(ARRAYS):
                count, size = self._handle.array_shape(i, k)
                if count == 0 or (array == "master" and not master_set):
                    continue
                tensor = torch.empty(count, dtype=self._array_dtype(array, size))
                self._handle.array_read(i, k, tensor.data_ptr())
                entry[array] = tensor.view(p.shape) if count == p.numel() and "scale" not in array \
                    else tensor
            result["state"][i] = entry
        first = 0
        for group in self.param_groups:
            packed = {k: v for k, v in group.items() if k != "params"}
            packed["params"] = list(range(first, first + len(group["params"])))
            first += len(group["params"])
            result["param_groups"].append(packed)
        return result

    def load_state_dict(self, state_dict):
        """Take what state_dict() gave; torch.optim.AdamW's too, for moments in f32 or bf16."""
        groups = state_dict["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("load_state_dict: another number of parameter groups or parameters")
        self.seal()
        flat = [k for g in groups for k in g["params"]]
        plans = []
        for i, key in enumerate(flat):  # all is checked before anything is changed
            entry = state_dict["state"].get(key)
            for k, array in enumerate(ARRAYS):
                count, size = self._handle.array_shape(i, k)
                value = None if entry is None else entry.get(array)
                if value is None:
                    if count and entry is not None and array != "master":
                        raise ValueError(f"load_state_dict: {self._names[i]} has no {array!r}; "
                                         "was it made with another algorithm or state?")
                    if count and array != "master":
                        plans.append((i, k, torch.zeros(count, dtype=self._array_dtype(array, size))))
                    continue
                if value.numel() != count:
                    raise ValueError(f"load_state_dict: {self._names[i]}: {array!r} has "
                                     f"{value.numel()} elements, {count} are kept here")
                dtype = self._array_dtype(array, size)
                exact = torch.uint8 in (dtype, value.dtype) or torch.int16 in (dtype, value.dtype)
                if exact and value.dtype != dtype:
                    raise ValueError(f"load_state_dict: {self._names[i]}: {array!r} is "
                                     f"{value.dtype}, kept as {dtype} here")
                plans.append((i, k, value))
        for i, key in enumerate(flat):
            entry = state_dict["state"].get(key)
            self._handle.updates_set(i, int(entry["step"]) if entry is not None else 0)
            self._handle.weights_changed(i)
        for i, k, value in plans:
            _, size = self._handle.array_shape(i, k)
            host = value.detach().to(device="cpu", dtype=self._array_dtype(ARRAYS[k], size))
            self._handle.array_write(i, k, host.contiguous().data_ptr())
        for group, saved in zip(self.param_groups, groups):
            group.update({k: v for k, v in saved.items()
                          if k not in ("params", "param_names")
                          and (k in group or k == "initial_lr")})

    def save_state(self, path):
        """Write the state to a file, whole or not at all, without holding a copy in memory."""
        self.seal()
        self._handle.save(path)

    def load_state(self, path):
        """Take the state from a file of save_state(). Hyper-parameters stay as they are."""
        self.seal()
        self._handle.load(path)
