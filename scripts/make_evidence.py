"""Write docs/evidence.md from the claims and the kept runs; --check fails when the page differs. An edited run fails.

`make evidence` and `make lint` call it. --docs DIR: a folder with evidence.md and evidence/, docs by default.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from plumage_bench.evidence.claims import NOT_KEPT, SECTIONS
from plumage_bench.evidence.digests import INDEX, edited, index
from plumage_bench.evidence.kept import load_runs
from plumage_bench.evidence.page import page


def main(arguments: list[str]) -> int:
    """1 where a run was edited, and where the page differs and --check is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page differs")
    parser.add_argument("--docs", type=Path, default=Path(__file__).parent.parent / "docs")
    given = parser.parse_args(arguments)
    folder: Path = given.docs / "evidence"
    if names := edited(folder):
        print(f"{folder}: {', '.join(names)} changed since the run. Keep a run as it was written.", file=sys.stderr)
        return 1
    wanted = {
        given.docs / "evidence.md": page(SECTIONS, NOT_KEPT, load_runs(folder)),
        folder / INDEX: index(folder),
    }
    if not given.check:
        for path, text in wanted.items():
            path.write_text(text)
        return 0
    differing = [str(path) for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if differing:
        print(f"{', '.join(differing)}: differs from the claims and runs: make evidence", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
