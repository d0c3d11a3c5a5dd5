"""The digests of the kept runs, in docs/evidence/digests.txt: an edited figure is an error, a new run is not.

`make evidence` writes the line of a file without one, and of a file whose run is another one: another commit, date,
command or duration. If a file changes and its run does not, a figure was edited.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from plumage_bench.evidence.figures import Record
from plumage_bench.evidence.kept import command_of, commit_of, load_runs

__all__ = ["INDEX", "edited", "index"]

INDEX = "digests.txt"


def index(folder: Path) -> str:
    """The content of the index: a line for each run with its digest, its file, and what identifies it."""
    return "".join(f"{_digest(folder, name)} {name} {_run(run)}\n" for name, run in load_runs(folder).items())


def edited(folder: Path) -> list[str]:
    """The files that differ from the index, though it has the same run."""
    path = folder / INDEX
    kept = dict(_parsed(line) for line in path.read_text().splitlines()) if path.exists() else {}
    digests = {name: (_digest(folder, name), _run(run)) for name, run in load_runs(folder).items()}
    return [name for name, (digest, run) in digests.items() if kept.get((name, run), digest) != digest]


def _parsed(line: str) -> tuple[tuple[str, str], str]:
    digest, name, run = line.split(" ", 2)
    return (name, run), digest


def _digest(folder: Path, name: str) -> str:
    return hashlib.sha256((folder / f"{name}.json").read_bytes()).hexdigest()


def _run(run: Record) -> str:
    return f"{commit_of(run)}, {run.get('seconds', '–')} s: {command_of(run)}"
