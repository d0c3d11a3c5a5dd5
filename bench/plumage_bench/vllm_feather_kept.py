"""Cells of `vllm-feather` that are done, kept beside its report: a run takes hours, and one that was ended goes on.

The file is no report: written after each cell, read only where `resume=1` asks for it, it holds each token's gap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.vllm_feather_report import Played

__all__ = ["NAME", "Kept"]

NAME = "vllm-feather.done.json"


class Kept:
    """The done cells in one file. made_by: what must be alike for a cell to be taken over, as the seed and who played.
    resume: begin with what the file has; ConfigurationError where something else made it, or it can't be read."""

    def __init__(self, path: Path, made_by: Mapping[str, Any], resume: bool) -> None:
        self._path, self._made_by = path, dict(made_by)
        self._cells: dict[str, Any] = self._read() if resume and path.exists() else {}

    def cell(self, name: str) -> dict[str, list[Played]] | None:
        """Each policy's runs, or None where the cell was not ended."""
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
