"""docs/decisions/index.md: number, title and status of each decision, read from its page.

A page begins with `# NNNN Title`. A paragraph `Status: …` gives the status; a page without one is
accepted.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
HEAD = """# Decisions

`make docs-pages` writes this index from the pages. A title states the decision; a page gives context, decision and
consequences. A decision that another one changed says so in its status.

| number | decision | status |
|---|---|---|
"""


def page() -> str:
    """The whole index."""
    return HEAD + "".join(_row(path) for path in sorted(FOLDER.glob("[0-9]*.md")))


def _row(path: Path) -> str:
    text = path.read_text()
    heading = re.match(r"# (\d{4}) (.+)\n", text)
    if heading is None:
        raise SystemExit(f"{path}: the first line must be '# NNNN Title'")
    number, title = heading.groups()
    status = re.search(r"^Status: (.+?)\.?\n\n", text, re.MULTILINE | re.DOTALL)
    shown = " ".join(status[1].split()) if status else "accepted"
    return f"| {number} | [{title}]({path.name}) | {shown} |\n"
