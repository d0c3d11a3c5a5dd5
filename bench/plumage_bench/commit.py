"""The commit that a benchmark measures."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["measured_commit"]


def measured_commit() -> str:
    """The commit of this checkout, with a plus if files differ from it. A copy without its history reads the commit
    from PLUMAGE_COMMIT; otherwise it is empty."""
    if named := os.environ.get("PLUMAGE_COMMIT"):
        return named
    head = _git("rev-parse", "--short=10", "HEAD")
    return head + "+" * bool(head and _git("status", "--porcelain", "-uno"))


def _git(*words: str) -> str:
    try:
        run = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, timeout=10.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
