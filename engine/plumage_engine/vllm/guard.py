"""A feature's safety net: whatever goes wrong in a hook, vLLM serves on as it would without us.

Used as
    try:
        ...
    except Exception as error:
        self._guard.failed(error)
which costs nothing while all is well.
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
    """`on` until the first failure of `feature`. counters: where failures are counted. fall_back: brings vLLM's own
    behaviour back; called once."""

    def __init__(self, feature: str, counters: Counters, fall_back: Callable[[], None] = lambda: None) -> None:
        self.feature = feature
        self.on = True
        self.reason = ""
        self.fall_back = fall_back
        self.counters = counters

    def told(self) -> dict[str, Any]:
        """As stats have it."""
        return {"on": self.on, "reason": self.reason}

    def failed(self, error: Exception) -> None:
        """Switch the feature off, loudly, and give vLLM's own behaviour back."""
        self.counters.add("failures", label=self.feature)
        if not self.on:
            return
        self.on = False
        self.reason = f"{type(error).__name__}: {error}"
        _log.error(
            "plumage: %s failed and is off until the engine is restarted; vLLM goes on as it would without it. "
            "Please report this with the lines below.", self.feature, exc_info=error,
        )  # fmt: skip
        try:
            self.fall_back()
        except Exception as second:
            self.counters.add("failures", label=self.feature)
            _log.error("plumage: %s: vLLM's own way could not be taken up whole", self.feature, exc_info=second)

    def refuse(self, reasons: list[str]) -> None:
        """Leave the feature off from the start. reasons: what of this vLLM, of the model or of the options is against
        it, each a sentence that needs no other."""
        self.on = False
        self.reason = "; ".join(reasons)
        _log.error("plumage: %s stays off: %s", self.feature, self.reason)


def attempt(guard: Guard, install: Callable[[], _Made]) -> _Made | None:
    """What `install` returns. None, with the feature off, where this vLLM has moved what it imports or takes hold of;
    a ConfigurationError is the user's to mend, and passes."""
    try:
        return install()
    except ConfigurationError:
        raise
    except ImportError as error:
        guard.refuse([f"this vLLM lacks what it hooks: {error}"])
    except Exception as error:
        guard.failed(error)
    return None
