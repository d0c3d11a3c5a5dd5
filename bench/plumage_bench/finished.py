"""Results of the finished parts of a benchmark, saved beside its report: a long run can continue after an interruption.

The file is not a report. Its first line has the settings of the run, and each other line one part. A line is appended
after each part, and they are read only with `resume=1`.
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
        self._begun = resume and path.exists()
        self._parts: dict[str, Any] = self._read() if self._begun else {}

    def get(self, name: str) -> Any:
        """The result of a part, as JSON gives it back, or None if the part is not finished."""
        return self._parts.get(name)

    def add(self, name: str, result: Any) -> None:
        """result: anything that JSON can hold but None."""
        line = json.dumps([name, result])
        self._parts[name] = json.loads(line)[1]
        with self._path.open("a" if self._begun else "w") as file:
            if not self._begun:
                file.write(json.dumps(self._made_by) + "\n")
            file.write(line + "\n")
        self._begun = True

    def _read(self) -> dict[str, Any]:
        try:
            written = self._path.read_text()
            whole = written[: written.rfind("\n") + 1]  # a line that was being written is not finished
            first, *lines = whole.splitlines()
            made_by = dict(json.loads(first))
            parts = {str(name): result for name, result in map(json.loads, lines)}
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"resume=1: {self._path} can't be read ({error}): remove it") from None
        if made_by != self._made_by:
            differ = [key for key in sorted({*made_by, *self._made_by}) if made_by.get(key) != self._made_by.get(key)]
            reason = f"{self._path} is of another run, its {', '.join(differ)} differ"
            raise ConfigurationError(f"resume=1: {reason}: give that run's, or remove it")
        if whole != written:
            self._path.write_text(whole)
        return parts
