"""docs/tested.md: what was seen working where, from docs/tested.yaml and the tests that exist.

A path in the data that has no test is an error, so the page claims nothing that no test shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "tested.yaml"
COLUMNS = {
    "real servers and processes": ("tests/integration/", "tests/contract/"),
    "pool on one machine": ("tests/e2e/",),
    "test cluster": ("tests/e2e_cluster/", "tests/e2e_cluster_victims/"),
    "vLLM on a CPU": ("tests/vllm/", "tests/e2e_cluster_vllm/"),
}
HEAD = """# What was tested where

`make docs-pages` writes this page from `docs/tested.yaml` and the tests. A cell links to the tests that show the
behaviour. An empty cell means that no test covers it there. The last column lists what nobody has seen work. Engines
in the test cluster are simulated unless the column says vLLM.

What replaces real parts: simulated engines or vLLM's CPU build replace vLLM on a GPU; a small container runtime of this
repository replaces runc below real kubelets; in `bench router` a compiled server that answers at once replaces engines.
Everything else is real: Valkey, the `openai` client, engines, agents and routers as processes, etcd, API server,
controllers, scheduler, kube-proxy and kubelets.

The versions that ran:

"""


def page() -> str:
    """The whole page."""
    data = yaml.safe_load(DATA.read_text())
    versions = "".join(f"- {one}.\n" for one in data["versions"])
    head = f"| what | {' | '.join(COLUMNS)} | run by hand | not seen |\n|{'---|' * (len(COLUMNS) + 3)}\n"
    return f"{HEAD}{versions}\n{head}{''.join(map(_row, data['rows']))}"


def _row(row: dict[str, Any]) -> str:
    placed = {path: _column(path) for path in row["tests"]}
    cells = [", ".join(_link(path) for path in placed if placed[path] == column) for column in COLUMNS]
    return f"| {row['what']} | {' | '.join(cells)} | {row.get('by_hand', '')} | {row.get('not_seen', '')} |\n"


def _column(path: str) -> str:
    """The column that a test's folder belongs to."""
    for column, folders in COLUMNS.items():
        if f"{path}/".startswith(folders):
            return column
    raise SystemExit(f"{DATA}: {path} is in no folder of tests that has a column")


def _link(path: str) -> str:
    found = ROOT / path
    if not (found.is_file() or (found.is_dir() and any(found.rglob("test_*.py")))):
        raise SystemExit(f"{DATA}: {path} has no tests")
    return f"[{found.stem.removeprefix('test_')}](../{path})"
