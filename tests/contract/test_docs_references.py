"""The pages refer to things that exist: links, headings, files, modules, manifest fields, and
figures of the evidence.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from docs_pages.references import (
    DOCS,
    ROOT,
    dead_links,
    missing_metrics,
    missing_modules,
    missing_paths,
    missing_short_paths,
    pages,
)

from plumage.api.v1alpha1 import InferenceGateway, InferencePool

PARTS = ("spec", "engine", "router", "directory", "model", "rollout", "autoscaling", "hostMemory")


def _of(pages: list[Path]) -> list[Any]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


@pytest.mark.parametrize("page", _of([*pages(), *sorted((DOCS / "decisions").glob("*.md"))]))
def test_links_have_a_target(page: Path) -> None:
    assert dead_links(page) == []


@pytest.mark.parametrize("page", _of(pages()))
def test_named_code_exists(page: Path) -> None:
    assert missing_paths(page) == []
    assert missing_short_paths(page) == []
    assert missing_modules(page) == []
    assert missing_metrics(page) == []


def test_missing_code_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`core/plumage/gone.py` `plumage.gone` `plumage.hashing.gone_too` [x](gone.md) [y](#nowhere)\n")
    assert missing_paths(page) == ["core/plumage/gone.py"]
    assert missing_modules(page) == ["plumage.gone", "plumage.hashing.gone_too"]
    assert dead_links(page) == ["gone.md#", "#nowhere"]


def test_missing_short_path_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`proxy/attempt.py` `proxy/gone.py` `of proxy/gone_too.py` `/etc/mine.py` `./my/own.py` proxy/no_code.py\n"
    )
    assert missing_short_paths(page) == ["proxy/gone.py", "proxy/gone_too.py"]


def test_missing_metric_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`plumage_router_ttft_seconds` `plumage_router_ttft_seconds_bucket` `plumage_held_requests`\n"
        "`plumage_router_gone_total` `plumage_router_retries` `plumage_router_directory_*` `plumage_router.proxy`\n"
        "```\nrate(plumage_agent_gone_total[5m])\n```\n"
    )
    assert missing_metrics(page) == ["plumage_agent_gone_total", "plumage_router_gone_total", "plumage_router_retries"]


@pytest.mark.parametrize("page", _of(sorted([*DOCS.glob("how-to/*.md"), *DOCS.glob("tutorial/*.md")])))
def test_named_manifest_fields_exist(page: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(PARTS)})(?:\.[a-z]\w+)+)", page.read_text())
    known = _fields()
    assert [name for name in named if not any(f".{path}.".find(f".{name}.") >= 0 for path in known)] == []


def test_paths_of_the_architecture_page_exist() -> None:
    page = DOCS / "explanation" / "architecture.md"
    rows = re.findall(r"^\| \d+ \| \[.+?\]\((.+?)\) \| `(\w+)` \|", page.read_text(), re.MULTILINE)
    modules = [(page.parent / path).resolve() for path, _ in rows]
    assert [path for path in modules if not path.is_file()] == []
    assert len(set(modules)) == len(rows) > 20
    lacking = [
        f"{module.name}: {name}"
        for module, (_, name) in zip(modules, rows, strict=True)
        if not re.search(rf"(?:def|class) {name}\b", module.read_text())
    ]
    assert lacking == []


def test_readme_figures_equal_the_evidence() -> None:
    """`make evidence` may change a figure: then write it into the README too."""
    shown = re.findall(r"^\| .+? \| ([\d.]+) \| (`plumage bench .+?`) \|$", (ROOT / "README.md").read_text(), re.M)
    kept = re.findall(
        r"^\| .+? \| ([\d.,]+) \| .* \| (`plumage bench .+?`) \|", (DOCS / "evidence.md").read_text(), re.M
    )
    assert len(shown) == 2
    assert set(shown) <= set(kept)


def _fields() -> set[str]:
    """Dotted paths of all fields of both kinds."""
    found: set[str] = set()
    for kind in (InferencePool, InferenceGateway):
        schema = kind.model_json_schema()
        _walk("", schema, schema["$defs"], found)
    return found


def _walk(path: str, schema: dict[str, Any], defs: dict[str, Any], found: set[str]) -> None:
    for option in (schema, *schema.get("anyOf", ())):
        if "$ref" in option:
            _walk(path, defs[option["$ref"].rpartition("/")[2]], defs, found)
        if "items" in option:
            _walk(path, option["items"], defs, found)
        for name, field in option.get("properties", {}).items():
            if path.count(".") < 8 and name not in ("affinity", "topologySpreadConstraints", "status"):
                found.add(f"{path}.{name}".lstrip("."))
                _walk(f"{path}.{name}".lstrip("."), field, defs, found)
