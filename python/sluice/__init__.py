# SPDX-License-Identifier: Apache-2.0
"""Sluice's optimizer for Python."""

from .library import Error, version

__all__ = ["Error", "version"]
