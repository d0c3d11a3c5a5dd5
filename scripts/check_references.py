#!/usr/bin/env python3
"""Find links, paths and metrics in pages that do not exist: `python scripts/check_references.py`, for `make lint`.

mkdocs checks the pages of docs/ only. This reads README.md, CONTRIBUTING.md and the other pages outside docs/ too.
In decisions only links are checked: their paths are those of the tree of their day.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from docs_pages.references import (
    DOCS,
    dead_links,
    missing_metrics,
    missing_modules,
    missing_paths,
    missing_short_paths,
    pages,
)


def findings(checked: Iterable[Path], *, links_only: Iterable[Path] = ()) -> list[str]:
    """`page: what does not exist` for each dead link, path, module and metric."""
    found = []
    for page in checked:
        missing = [*dead_links(page), *missing_paths(page), *missing_short_paths(page)]
        missing += [*missing_modules(page), *missing_metrics(page)]
        found += [f"{page}: {name} does not exist" for name in missing]
    for page in links_only:
        found += [f"{page}: {name} does not exist" for name in dead_links(page)]
    return found


if __name__ == "__main__":
    wrong = findings(pages(), links_only=sorted((DOCS / "decisions").glob("*.md")))
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(f"{len(wrong)} references to nothing: correct the page, or the path that it names")
