"""Switches a feature off when one of its hooks fails, so that vLLM serves on without it.

Used as
    try:
        ...
    except Exception as error:
        self._guard.failed(error)
which costs nothing while no hook fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from plumage.errors import ConfigurationError
from plumage_engine.vllm.counters import Counters

__all__ = ["Guard", "attempt"]

_Made = TypeVar("_Made")
_log = logging.getLogger("vllm.plumage")


class Guard:
    """`on` until the first failure of `feature`.

    counters: count its failures.
    fall_back: restores vLLM's own behaviour; called once.
    """

    def __init__(self, feature: str, counters: Counters, fall_back: Callable[[], None] = lambda: None) -> None:
        self.feature = feature
        self.on = True
        self.reason = ""
        self.fall_back = fall_back
        self.counters = counters

    def report(self) -> dict[str, Any]:
        """The state as stats report it."""
        return {"on": self.on, "reason": self.reason}

    def failed(self, error: Exception) -> None:
        """Switch the feature off, log the error, and restore vLLM's own behaviour."""
        self.counters.add("failures", label=self.feature)
        if not self.on:
            return
        self.on = False
        self.reason = f"{type(error).__name__}: {error}"
        _log.error(
            "plumage: %s failed and is off until the engine is restarted; vLLM serves on without it. "
            "Please report this with the lines below.", self.feature, exc_info=error,
        )  # fmt: skip
        try:
            self.fall_back()
        except Exception as second:
            self.counters.add("failures", label=self.feature)
            _log.error("plumage: %s: vLLM's own behaviour is not completely restored", self.feature, exc_info=second)

    def refuse(self, reasons: list[str]) -> None:
        """Leave the feature off from the start.

        reasons: what of this vLLM, the model or the options conflicts with it; each a sentence of its own.
        """
        self.on = False
        self.reason = "; ".join(reasons)
        _log.error("plumage: %s stays off: %s", self.feature, self.reason)


def attempt(guard: Guard, install: Callable[[], _Made]) -> _Made | None:
    """Return what `install` returns, or None, with the feature off, where this vLLM lacks a name or its shape changed.

    ConfigurationError is the user's mistake and is raised.
    """
    try:
        return install()
    except ConfigurationError:
        raise
    except ImportError as error:
        guard.refuse([f"this vLLM lacks what it hooks: {error}"])
    except Exception as error:
        guard.failed(error)
    return None
