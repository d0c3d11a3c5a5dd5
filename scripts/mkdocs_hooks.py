"""Hooks of the docs site (mkdocs.yml): links that leave docs/, the chart's page, and references to code.

A link to a folder, or to a file of the repository outside of docs/, becomes its text, since the site has no such
page; it must exist. The chart's README is the page reference/chart.md. Each warning fails `make docs`, which is strict.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from docs_pages.references import missing_metrics, missing_modules, missing_paths, missing_short_paths  # noqa: E402

log = logging.getLogger("mkdocs.hooks.plumage")
CHART = ROOT / "charts" / "plumage" / "README.md"
CHART_PAGE = "reference/chart.md"
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the chart's page."""
    files.append(File.generated(config, CHART_PAGE, content=CHART.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page with links that the site can follow; warns of code that does not exist."""
    docs = Path(config["docs_dir"])
    source = CHART if page.file.src_uri == CHART_PAGE else docs / page.file.src_uri
    if source.parent.name != "decisions":
        checks = (missing_paths, missing_short_paths, missing_modules, missing_metrics)
        for name in [name for check in checks for name in check(source)]:
            log.warning("%s refers to %s, which does not exist", page.file.src_uri, name)

    def local(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = (source.parent / target).resolve()
        if path == CHART.resolve():
            return f"[{text}]({'../' * page.file.src_uri.count('/')}{CHART_PAGE}{anchor})"
        if path.is_relative_to(docs.resolve()) and not path.is_dir():
            return f"[{text}]({os.path.relpath(path, (docs / page.file.src_uri).parent)}{anchor})"
        if not path.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, target)
        return text

    return LINK.sub(local, markdown)
