# SPDX-License-Identifier: Apache-2.0
"""libsluice.so through ctypes: the structs of engine/optimizer.h, and errors as exceptions.

The library is looked for in this order: the file that SLUICE_LIBRARY names, beside this package,
where the system's loader looks. Struct sizes are compared with the library's when it is loaded.
"""

import ctypes
import os
import pathlib
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)

ALGORITHMS = {"adamw": 0, "adam": 1, "lion": 2, "adagrad": 3, "sgd": 4}
STATES = {"f32": 0, "bf16": 1, "q8": 2}
MASTERS = {"plain": 0, "split": 1, "none": 2}
F32, BF16, F16 = 0, 1, 2
ARRAYS = ("master", "exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale")


class Options(Structure):
    _fields_ = [
        ("algorithm", c_int),
        ("state", c_int),
        ("master", c_int),
        ("placement", c_int),
        ("paths", POINTER(c_char_p)),
        ("path_count", c_size_t),
        ("host_bytes_max", c_uint64),
        ("sub_group_elements", c_uint64),
        ("buffers", c_uint32),
        ("threads", c_uint32),
        ("unpinned", c_bool),
        ("seed", c_uint64),
        ("log", c_void_p),
    ]


class Group(Structure):
    _fields_ = [(name, c_double) for name in
                ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum")]
    _fields_ += [("nesterov", c_bool), ("bias_correction", c_bool)]


class Param(Structure):
    _fields_ = [("name", c_char_p), ("count", c_uint64), ("dtype", c_int), ("group", c_uint32)]


class Plan(Structure):
    _fields_ = [(name, c_uint64) for name in (
        "param_count", "elements", "state_host_bytes", "state_nvme_bytes", "buffer_bytes",
        "sums_bytes", "table_bytes", "host_bytes", "sub_groups", "sub_groups_nvme",
        "sub_group_bytes", "step_read_bytes", "step_write_bytes")]
    _fields_ += [("buffers", c_uint32), ("threads", c_uint32)]


class Step(Structure):
    _fields_ = [
        ("gradients", POINTER(c_void_p)),
        ("gradient_dtypes", POINTER(c_int)),
        ("weights", POINTER(c_void_p)),
        ("clip_norm", c_double),
        ("grad_scale", c_double),
        ("lr", c_double),
    ]


class Result(Structure):
    _fields_ = [
        ("norm", c_double),
        ("norm_clipped", c_double),
        ("nonfinite", c_uint64),
        ("nonfinite_param", c_int64),
        ("bytes_read", c_uint64),
        ("bytes_written", c_uint64),
        ("norm_seconds", c_double),
        ("update_seconds", c_double),
        ("wait_seconds", c_double),
        ("clipped", c_bool),
        ("skipped", c_bool),
    ]

    def __repr__(self):
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name, _ in self._fields_)
        return f"{type(self).__name__}({values})"


class ErrorStruct(Structure):
    _fields_ = [("domain", c_int), ("code", c_int), ("message", c_char * 1024)]


class Error(RuntimeError):
    """What the library says. `code` is a negative errno."""

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


_STRUCTS = (Options, Group, Param, Plan, Step, Result, ErrorStruct)
_library = None


def _candidates():
    named = os.environ.get("SLUICE_LIBRARY")
    if named:
        return [named]
    here = pathlib.Path(__file__).resolve().parent
    return [str(p) for p in (here / "libsluice.so", here.parent / "libsluice.so")
            if p.exists()] + ["libsluice.so.0"]


def load():
    """The library, loaded once. ImportError says where it was looked for."""
    global _library
    if _library is not None:
        return _library
    tried = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path, use_errno=True)
            break
        except OSError as error:
            tried.append(f"{path}: {error}")
    else:
        raise ImportError(
            "libsluice.so was not found (" + "; ".join(tried) + "). Build it (meson setup build && "
            "ninja -C build) and set SLUICE_LIBRARY to the file, or meson install it and run ldconfig.")
    pointer, error = c_void_p, POINTER(ErrorStruct)
    integer = POINTER(c_uint32)
    signatures = {
        "create": [POINTER(pointer), POINTER(Options), error],
        "group_add": [pointer, POINTER(Group), integer, error],
        "group_set": [pointer, c_uint32, POINTER(Group), error],
        "add": [pointer, POINTER(Param), integer, error],
        "plan": [pointer, POINTER(Plan), error],
        "plan_text": [pointer, POINTER(c_void_p), error],
        "seal": [pointer, POINTER(Plan), error],
        "step": [pointer, POINTER(Step), POINTER(Result), error],
        "weights_changed": [pointer, c_uint32, error],
        "array_shape": [pointer, c_uint32, c_int, POINTER(c_uint64), integer, error],
        "array_read": [pointer, c_uint32, c_int, c_void_p, error],
        "array_write": [pointer, c_uint32, c_int, c_void_p, error],
        "updates_get": [pointer, c_uint32, POINTER(c_uint64), POINTER(c_bool), error],
        "updates_set": [pointer, c_uint32, c_uint64, error],
        "save": [pointer, c_char_p, error],
        "load": [pointer, c_char_p, error],
    }
    try:
        for name, types in signatures.items():
            function = getattr(library, "sl_optimizer_" + name)
            function.argtypes, function.restype = types, c_int
        library.sl_optimizer_destroy.argtypes = [pointer]
        library.sl_optimizer_destroy.restype = None
        library.sl_optimizer_text_free.argtypes = [pointer]
        library.sl_optimizer_text_free.restype = None
        library.sl_optimizer_struct_bytes.argtypes = [c_int]
        library.sl_optimizer_struct_bytes.restype = c_size_t
        library.sl_version.restype = c_char_p
    except AttributeError as missing:
        raise ImportError(f"{path} is another version of libsluice.so: {missing}") from None
    for i, struct in enumerate(_STRUCTS):
        if library.sl_optimizer_struct_bytes(i) != ctypes.sizeof(struct):
            raise ImportError(
                f"{path} is another version of libsluice.so: {struct.__name__} has "
                f"{library.sl_optimizer_struct_bytes(i)} bytes there, {ctypes.sizeof(struct)} here")
    _library = library
    return library


def version():
    return load().sl_version().decode()


class Handle:
    """One struct sl_optimizer. Methods raise Error, and RuntimeError after close()."""

    def __init__(self, options):
        self._pointer = c_void_p()
        self._library = load()
        self._call("create", ctypes.byref(options), first=ctypes.byref(self._pointer))

    def _call(self, name, *args, first=None):
        if first is None and not self._pointer:
            raise RuntimeError("the optimizer has been closed")
        error = ErrorStruct()
        function = getattr(self._library, "sl_optimizer_" + name)
        code = function(self._pointer if first is None else first, *args, ctypes.byref(error))
        if code == 0:
            return
        message = error.message.decode(errors="replace") or os.strerror(-code)
        raise Error(message, code)

    def close(self):
        pointer, self._pointer = self._pointer, c_void_p()
        self._library.sl_optimizer_destroy(pointer)

    def __del__(self):
        if getattr(self, "_pointer", None):
            self.close()

    def group_add(self, group):
        index = c_uint32()
        self._call("group_add", ctypes.byref(group), ctypes.byref(index))
        return index.value

    def group_set(self, index, group):
        self._call("group_set", index, ctypes.byref(group))

    def add(self, name, count, dtype, group):
        index = c_uint32()
        param = Param(name.encode(), count, dtype, group)
        self._call("add", ctypes.byref(param), ctypes.byref(index))
        return index.value

    def plan(self):
        plan = Plan()
        self._call("plan", ctypes.byref(plan))
        return plan

    def plan_text(self):
        text = c_void_p()
        self._call("plan_text", ctypes.byref(text))
        try:
            return ctypes.string_at(text.value).decode()
        finally:
            self._library.sl_optimizer_text_free(text)

    def seal(self):
        self._call("seal", None)

    def step(self, step):
        result = Result()
        self._call("step", ctypes.byref(step), ctypes.byref(result))
        return result

    def weights_changed(self, index):
        self._call("weights_changed", index)

    def array_shape(self, index, array):
        count, entry = c_uint64(), c_uint32()
        self._call("array_shape", index, array, ctypes.byref(count), ctypes.byref(entry))
        return count.value, entry.value

    def array_read(self, index, array, address):
        self._call("array_read", index, array, address)

    def array_write(self, index, array, address):
        self._call("array_write", index, array, address)

    def updates(self, index):
        updates, master_set = c_uint64(), c_bool()
        self._call("updates_get", index, ctypes.byref(updates), ctypes.byref(master_set))
        return updates.value, master_set.value

    def updates_set(self, index, updates):
        self._call("updates_set", index, updates)

    def save(self, path):
        self._call("save", os.fsencode(path))

    def load(self, path):
        self._call("load", os.fsencode(path))
