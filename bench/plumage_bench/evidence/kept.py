"""The runs with a file in docs/evidence."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plumage_bench.evidence.figures import Record

__all__ = ["command_of", "commit_of", "has_bootstrap", "is_old", "load_runs"]

_FIRST_JUDGED = "2026-11-24"  # from 24a58ae on, settings of ours come from a manifest, and a run records its date
_LAST_BOOTSTRAP = "2026-11-25"  # 8e36f92, in that night, replaced the bootstrap's intervals by Student's


def load_runs(folder: Path) -> dict[str, Record]:
    """All kept runs by the name of their file without .json."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def command_of(run: Record) -> str:
    """The command of the run: as recorded, or derived from the options of a file without a command."""
    if "command" in run:
        return str(run["command"])
    if "benchmark" not in run:
        return ""
    options = [f"{key}={_file_name(value)}" for key, value in run.get("options", {}).items()]
    words = ["plumage", "bench", run["benchmark"], *(["--quick"] if run["quick"] else [])]
    seed = ["--seed", str(run["seed"])] if run["seed"] != 1 else []
    return shlex.join([*words, *seed, *options])


def commit_of(run: Record) -> str:
    """Commit and date of the run; for a file without them, the day on which the file was committed."""
    commit = run.get("commit") or "unknown commit"
    when: Mapping[str, Any] = run
    if "date" in when:
        return f"{commit}, {when['date']}"
    return f"{commit}, kept {when['kept']}" if "kept" in when else f"{commit}, unknown date"


def is_old(run: Record) -> bool:
    """Whether the run is shown and not judged: it names no commit, or measured one before settings of ours came from a
    manifest. A file with the day of its commit (`kept`) instead of a date is that old."""
    return not run.get("commit") or str(run.get("date", "")) < _FIRST_JUDGED


def has_bootstrap(run: Record) -> bool:
    """Whether the run's own intervals are a bootstrap's, which are narrower than 95 %."""
    return str(run.get("date") or run.get("kept") or "") <= _LAST_BOOTSTRAP


def _file_name(value: str) -> str:
    return value.split(" (sha256 ", 1)[0]
