"""The site of docs/ builds in strict mode. A broken link, heading or code reference fails the build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from docs_pages.references import ROOT

BROKEN = {
    "a link": ("[x](gone.md)", "gone.md"),
    "a heading": ("[x](#nowhere)", "#nowhere"),
    "a link out of docs": ("[x](../core/gone.py)", "../core/gone.py"),
    "a file": ("`core/plumage/gone.py`", "core/plumage/gone.py"),
    "a module": ("`plumage.gone`", "plumage.gone"),
}


def test_site_builds_in_strict_mode(tmp_path: Path) -> None:
    built = _build(ROOT / "mkdocs.yml", tmp_path / "site")
    assert built.returncode == 0, built.stderr
    assert "Plumage" in (tmp_path / "site" / "index.html").read_text()
    assert "helm install" in (tmp_path / "site" / "reference" / "chart" / "index.html").read_text()


def test_broken_references_fail_the_site(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Home\n\n" + "\n\n".join(text for text, _ in BROKEN.values()) + "\n")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    settings |= {"docs_dir": str(docs), "hooks": [str(ROOT / "scripts" / "mkdocs_hooks.py")]}
    del settings["nav"]
    config = tmp_path / "mkdocs.yml"
    config.write_text(yaml.safe_dump(settings))
    built = _build(config, tmp_path / "site")
    assert built.returncode != 0
    assert [name for name, (_, shown) in BROKEN.items() if shown not in built.stderr] == []


def test_make_and_lint_are_strict() -> None:
    """With --quiet mkdocs counts no warnings, so --strict would have no effect."""
    for name in ("Makefile", "scripts/lint.sh"):
        (line,) = (one for one in (ROOT / name).read_text().splitlines() if "mkdocs" in one)
        assert line.rstrip().endswith("build --strict")


def _build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--config-file={config}", f"--site-dir={site}"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
