# SPDX-License-Identifier: Apache-2.0
"""Sluice's optimizer for Python. `sluice.Optimizer` needs torch; `sluice.library` does not."""

from .library import Error, version

__all__ = ["Error", "Optimizer", "version"]


def __getattr__(name):
    if name == "Optimizer":
        from .optimizer import Optimizer

        return Optimizer
    raise AttributeError(f"module 'sluice' has no attribute {name!r}")
