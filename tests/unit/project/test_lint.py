"""`make lint` runs every check of scripts/, and each check names what is wrong and how to correct it."""

from __future__ import annotations

import importlib.util
import re
import tomllib
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


def test_short_path_and_metric_of_nothing_are_found(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("`proxy/gone.py` counts `plumage_router_gone_total`\n")
    assert _load("check_references").findings([readme]) == [
        f"{readme}: proxy/gone.py does not exist",
        f"{readme}: plumage_router_gone_total does not exist",
    ]


@pytest.fixture
def batching(tmp_path: Path) -> Path:
    """A package of a repository whose `__init__` imports one of its modules."""
    folder = tmp_path / "core" / "plumage" / "batching"
    (folder / "stop").mkdir(parents=True)
    (folder / "__init__.py").write_text("from plumage.batching.factory import make_queue\n")
    (folder / "factory.py").write_text("from plumage.batching import tree\nfrom plumage.batching.tree import Node\n")
    for empty in (folder.parent / "__init__.py", folder / "tree.py", folder / "stop" / "__init__.py"):
        empty.write_text("")
    return folder


def test_modules_that_import_each_other_by_name_pass(batching: Path) -> None:
    (batching / "stop" / "one.py").write_text("from plumage.batching.stop import DEFAULT\nimport plumage.errors\n")
    assert _load("check_imports").findings(batching.parents[2]) == [], "an __init__ that imports nothing has no cycle"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tree.py", "from plumage.batching import make_queue"),
        ("tree.py", "import plumage.batching"),
        ("tree.py", "def late() -> None:\n    from plumage.batching import make_queue"),
        ("stop/__init__.py", "from plumage.batching import factory, make_queue"),
    ],
)
def test_import_of_the_own_package_is_found(batching: Path, name: str, line: str) -> None:
    (batching / name).write_text(f"{line}\n")
    number = len(line.splitlines())
    assert _load("check_imports").findings(batching.parents[2]) == [
        f"core/plumage/batching/{name}:{number}: plumage.batching"
    ]


def test_contracts_name_every_module() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [contract for contract in contracts if contract["type"] == "layers"]
    assert len(layers) > 10
    assert [contract["name"] for contract in layers if not contract.get("exhaustive")] == []


def test_stale_manifest_reference_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = _load("make_manifest_reference")
    monkeypatch.setattr(script, "PAGE", tmp_path / "manifest.md")
    monkeypatch.setattr("sys.argv", ["make_manifest_reference.py", "--check"])
    assert script.main() == 1
    assert "make docs-pages" in capsys.readouterr().err
