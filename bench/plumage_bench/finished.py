"""Results of the finished parts of a benchmark, saved beside its report: a long run can continue after an interruption.

The file is not a report. It is written after each part and read only with `resume=1`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plumage.errors import ConfigurationError

__all__ = ["Finished"]


class Finished:
    """The finished parts in one file. made_by: settings that must be equal so that a result may be used, such as the
    seed. resume: begin with the results of the file; ConfigurationError if it has other settings or can not be read."""

    def __init__(self, path: Path, made_by: Mapping[str, Any], resume: bool) -> None:
        self._path, self._made_by = path, dict(made_by)
        self._parts: dict[str, Any] = self._read() if resume and path.exists() else {}

    def get(self, name: str) -> Any:
        """The result of a part, as JSON gives it back, or None if the part is not finished."""
        return self._parts.get(name)

    def add(self, name: str, result: Any) -> None:
        """result: anything that JSON can hold but None."""
        self._parts[name] = result
        written = self._path.with_suffix(".tmp")
        written.write_text(json.dumps({"made_by": self._made_by, "parts": self._parts}))
        written.replace(self._path)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_text())
            made_by, parts = dict(found["made_by"]), dict(found["parts"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"resume=1: {self._path} can't be read ({error}): remove it") from None
        if made_by != self._made_by:
            differ = [key for key in sorted({*made_by, *self._made_by}) if made_by.get(key) != self._made_by.get(key)]
            reason = f"{self._path} is of another run, its {', '.join(differ)} differ"
            raise ConfigurationError(f"resume=1: {reason}: give that run's, or remove it")
        return parts
