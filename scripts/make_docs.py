#!/usr/bin/env python3
"""Write the generated pages of docs/; --check fails when a page differs from its source.

python scripts/make_docs.py            # write the pages
python scripts/make_docs.py --check    # status 1 and the page's name when one differs
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from docs_pages import cli, decisions, http, tested

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "decisions/index.md": decisions.page,
    "tested.md": tested.page,
    "reference/cli.md": cli.page,
    "reference/http.md": http.page,
}


def main(arguments: list[str]) -> int:
    """1 where a page differs and --check is given."""
    check, stale = "--check" in arguments, 0
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale = 1
            print(f"docs/{name} differs from its source: make docs-pages", file=sys.stderr)
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
