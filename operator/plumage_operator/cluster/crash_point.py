"""For tests alone: the operator dies between two of its actions, as by SIGKILL, at a place that a test chose."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

__all__ = ["CRASHED", "VARIABLE", "CrashPoint"]

VARIABLE: Final = "PLUMAGE_TEST_CRASH_AFTER"
CRASHED: Final = 86
"""The exit code of a crash that was asked for."""


class CrashPoint:
    """Ends the process once as many actions were done as the variable says. Nothing is closed, released or written,
    which is what a plan that is made again must bear. Not set, as in every installation, it does nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._left = int(environment.get(VARIABLE) or 0)

    def passed(self) -> None:
        """An action was done."""
        if self._left == 1:
            os._exit(CRASHED)
        self._left = max(0, self._left - 1)
