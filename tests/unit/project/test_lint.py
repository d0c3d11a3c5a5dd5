"""`make lint` runs every check of scripts/, and each check names what is wrong and how to correct it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "scripts"
CHECK = re.compile(r"--check( +# status 1| fails when)")  # in the usage of a generator


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lint_runs_every_check() -> None:
    commands = (SCRIPTS / "lint.sh").read_text()
    generators = [path.name for path in SCRIPTS.glob("make_*.py") if CHECK.search(path.read_text())]
    checks = [path.name for path in SCRIPTS.glob("check_*.py")]
    assert len(generators) >= 6
    assert len(checks) >= 2
    wanted = [f"scripts/{name} --check" for name in generators] + [f"scripts/{name}\n" for name in checks]
    assert [command for command in wanted if command not in commands] == []


def test_reference_to_nothing_is_found_outside_docs(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("[gone](docs/gone.md) `core/plumage/gone.py`\n")
    assert _load("check_references").findings([readme]) == [
        f"{readme}: docs/gone.md# does not exist",
        f"{readme}: core/plumage/gone.py does not exist",
    ]


def test_stale_manifest_reference_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = _load("make_manifest_reference")
    monkeypatch.setattr(script, "PAGE", tmp_path / "manifest.md")
    monkeypatch.setattr("sys.argv", ["make_manifest_reference.py", "--check"])
    assert script.main() == 1
    assert "make docs-pages" in capsys.readouterr().err
