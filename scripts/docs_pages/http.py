"""docs/reference/http.md: every route and error code, from docs/reference/http.yaml, checked against the code.

A route in the code without a line in the data, or a line without a route, is an error. So is an error code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "reference" / "http.yaml"
ROUTE = re.compile(
    r"""(?:@app\.(?:get|post)\(\s*|\bRoute\(\s*|\.add_(?:get|post)\(\s*|\bPATH: Final = )"""
    r"""f?"(?P<path>/[^"]*|\{[^"]*)\""""
)
ERROR = re.compile(r"""\bcode="([a-z_]+)\"""")
HEAD = """# HTTP reference

`make docs-pages` writes this page from `docs/reference/http.yaml`, and fails where a route of the code is not in it.

Keys: an *API key* is a client's (`Authorization: Bearer KEY`); where a router has none, everybody is served. The *admin
key* comes as `X-Plumage-Admin-Key`. The *engine key* is the pool's own, for its routers. A *token* is a file that the
pod's components share; without one only loopback callers are served.
"""


def page() -> str:
    """The whole page."""
    data = yaml.safe_load(DATA.read_text())
    parts = "".join(_component(one) for one in data["components"])
    return HEAD + parts + _errors(data["errors"])


def _component(component: dict[str, Any]) -> str:
    sources = {path: path.read_text() for path in sorted((ROOT / component["files"]).rglob("*.py"))}
    text = "\n".join(sources.values())
    listed = [path for _, path, _, _ in component["routes"]]
    for found in ROUTE.finditer(text):
        pattern = _pattern(found["path"])
        if not any(pattern.fullmatch(path) for path in listed):
            raise SystemExit(f"{DATA}: {component['name']} lacks the route {found['path']}")
    for path in listed:
        last = re.sub(r"\{\w+\}", "", path).rstrip("/").rpartition("/")[2]
        if not re.search(rf"\b{re.escape(last)}\b", text) and not _in_core(path):
            raise SystemExit(f"{DATA}: {component['name']} has no route {path}")
    rows = "".join(f"| {method} | `{path}` | {who} | {what} |\n" for method, path, who, what in component["routes"])
    head = f"\n## {component['name']}\n\nPort: {component['port']}.\n\n"
    return f"{head}| method | path | who may call | what |\n|---|---|---|---|\n{rows}"


def _pattern(path: str) -> re.Pattern[str]:
    """A declared path as a pattern: each of its braces may stand for any text."""
    return re.compile(
        "".join(".*" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{.*?\})", path))
    )


def _in_core(path: str) -> bool:
    """Whether core names the path: router, operator and agent share some."""
    return any(f'"{path}"' in source.read_text() for source in (ROOT / "core" / "plumage").rglob("*.py"))


def _errors(meanings: dict[str, str]) -> str:
    router = ROOT / "router" / "plumage_router"
    text = "\n".join(path.read_text() for path in router.rglob("*.py"))
    used = set(ERROR.findall(text))
    if lacking := sorted(used - meanings.keys()):
        raise SystemExit(f"{DATA}: errors lacks the codes {', '.join(lacking)}")
    if gone := sorted(code for code in meanings.keys() - used if f'"{code}"' not in text):
        raise SystemExit(f"{DATA}: errors has codes that the router does not use: {', '.join(gone)}")
    rows = "".join(f"| `{code}` | {meaning} |\n" for code, meaning in sorted(meanings.items()))
    intro = (
        "\n## Error codes of the router\n\nA refused request gets OpenAI's error object. `code` is one of these, and"
        " the label `code` of `plumage_router_errors_total` too.\n\n| code | meaning |\n|---|---|\n"
    )
    return intro + rows
