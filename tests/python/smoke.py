# SPDX-License-Identifier: Apache-2.0
"""The bindings without torch: struct sizes, a step through ctypes arrays, errors, a save and a load."""

import array
import ctypes
import math
import os
import sys
import tempfile

if os.environ["SLUICE_SANITIZERS"] != "none":
    print("skipped: the library has a sanitizer in it, which must come first in a process, not python")
    sys.exit(77)

sys.path.insert(0, sys.argv[1])
from sluice import Error, version  # noqa: E402
from sluice.library import F32, Group, Handle, Options, Step, load  # noqa: E402


def make(paths=()):
    options = Options(placement=1 if paths else 0, path_count=len(paths), unpinned=True)
    if paths:
        options.paths = (ctypes.c_char_p * len(paths))(*[os.fsencode(p) for p in paths])
    handle = Handle(options)
    group = handle.group_add(Group(1e-2, 0.9, 0.999, 1e-8, 0.1, 0, False, True))
    handle.add("w", 1000, F32, group)
    return handle


def step(handle, weights, gradients):
    return handle.step(Step(
        (ctypes.c_void_p * 1)(gradients.buffer_info()[0]), None,
        (ctypes.c_void_p * 1)(weights.buffer_info()[0]), 0.0, 1.0, 0.0))


def main():
    assert version()
    assert load().sl_optimizer_struct_bytes(99) == 0
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for paths in ((), (folder,)):
            handle = make(paths)
            assert "AdamW" in handle.plan_text()
            handle.seal()
            weights = array.array("f", [0.5] * 1000)
            for i in range(3):
                result = step(handle, weights, array.array("f", [0.1 * (i + 1)] * 1000))
                assert not result.skipped and bool(result.bytes_read) == bool(paths)
            handle.save(os.path.join(folder, "state"))
            before = weights[:]
            result = step(handle, weights, array.array("f", [math.nan] * 1000))
            assert result.skipped and result.nonfinite == 1000 and result.nonfinite_param == 0
            assert weights == before
            runs.append(weights)
            handle.close()
        assert runs[0] == runs[1] and runs[0][0] != 0.5
        # A constant gradient: the first Adam step is lr (1 + decay weight), whatever its size.
        handle = make()
        try:
            step(handle, runs[0], runs[0])
            raise AssertionError("a step before seal")
        except Error as error:
            assert "seal" in str(error)
        handle.seal()
        weights = array.array("f", [0.5] * 1000)
        step(handle, weights, array.array("f", [123.0] * 1000))
        assert abs(weights[0] - (0.5 - 1e-2 * (1 + 0.1 * 0.5))) < 1e-7  # an ulp of f32 at 0.5
        handle.load(os.path.join(folder, "state"))
        assert handle.updates(0)[0] == 3
        handle.close()
        try:
            make((os.path.join(folder, "missing"),)).seal()
            raise AssertionError("a directory that is not there")
        except Error as error:
            assert "missing" in str(error) and error.code < 0
    print("struct sizes, steps, errors, save and load agree")


if __name__ == "__main__":
    main()
