"""Write docs/evidence.md from the claims and the kept runs; --check fails when the page differs.

`make evidence` and `make lint` call it. --docs DIR: a folder with evidence.md and evidence/, docs by default.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from plumage_bench.evidence.claims import NOT_KEPT, SECTIONS
from plumage_bench.evidence.kept import load_runs
from plumage_bench.evidence.page import page


def main(arguments: list[str]) -> int:
    """1 where the page differs and --check is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page differs")
    parser.add_argument("--docs", type=Path, default=Path(__file__).parent.parent / "docs")
    given = parser.parse_args(arguments)
    path: Path = given.docs / "evidence.md"
    wanted = page(SECTIONS, NOT_KEPT, load_runs(given.docs / "evidence"))
    if not given.check:
        path.write_text(wanted)
        return 0
    if path.exists() and path.read_text() == wanted:
        return 0
    print(f"{path} differs from its claims and runs: make evidence", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
