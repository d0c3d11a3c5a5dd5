"""Completed cells of `vllm-feather`, saved beside its report: a run takes hours, and can continue after an
interruption.

The file is not a report. It has each token's gap. It is written after each cell and read only with `resume=1`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.benches.vllm_feather.report import Played

__all__ = ["NAME", "Kept"]

NAME = "vllm-feather.done.json"


class Kept:
    """The completed cells in one file. made_by: settings that must be equal so that a cell may be used, such as the
    seed and the contenders. resume: begin with the cells of the file; ConfigurationError if it has other settings or
    can not be read."""

    def __init__(self, path: Path, made_by: Mapping[str, Any], resume: bool) -> None:
        self._path, self._made_by = path, dict(made_by)
        self._cells: dict[str, Any] = self._read() if resume and path.exists() else {}

    def cell(self, name: str) -> dict[str, list[Played]] | None:
        """The runs of each policy, or None if the cell is not complete."""
        runs = self._cells.get(name)
        return runs and {label: [_played(one) for one in each] for label, each in runs.items()}

    def keep(self, name: str, runs: Mapping[str, Sequence[Played]]) -> None:
        self._cells[name] = {label: [asdict(one) for one in each] for label, each in runs.items()}
        written = self._path.with_suffix(".tmp")
        written.write_text(json.dumps({"made_by": self._made_by, "cells": self._cells}))
        written.replace(self._path)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_text())
            made_by, cells = dict(found["made_by"]), dict(found["cells"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"resume=1: {self._path} can't be read ({error}): remove it") from None
        if made_by != self._made_by:
            differ = [key for key in sorted({*made_by, *self._made_by}) if made_by.get(key) != self._made_by.get(key)]
            reason = f"{self._path} is of another run, its {', '.join(differ)} differ"
            raise ConfigurationError(f"resume=1: {reason}: give that run's, or remove it")
        return cells


def _played(found: Mapping[str, Any]) -> Played:
    return Played(**{**found, "waits": tuple(found["waits"]), "gaps": tuple(found["gaps"])})
