"""The wheel contains the whole product, and nothing of the lab."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.needs import missing

ROOT = Path(__file__).parents[3]
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
PACKAGES: list[str] = CONFIG["targets"]["wheel"]["packages"]


def test_configuration_names_packages_of_the_product_only() -> None:
    assert set(CONFIG["targets"]["wheel"]) == {"packages", "hooks"}, "nothing else puts files into the wheel"
    assert set(CONFIG["targets"]["wheel"]["hooks"]) == {"custom"}, "which adds compiled modules, where it is asked to"
    assert CONFIG["targets"]["wheel"]["hooks"]["custom"]["enable-by-default"] is False
    assert {Path(package).name for package in PACKAGES} == {
        "plumage", "plumage_router", "plumage_engine", "plumage_operator", "plumage_cli",
    }  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel that is built from this tree."""
    if find_spec("hatchling") is None:
        missing("the package hatchling", "pip install 'plumage-llm[dev]'")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert built.returncode == 0, built.stderr
    (file,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(file).namelist())


def test_no_module_of_the_lab_is_in_the_wheel(wheel: set[str]) -> None:
    lab = {path.name for path in (ROOT / "bench").iterdir()}
    assert "plumage_bench" in lab
    assert not {name for name in wheel if name.split("/")[0] in lab}
    assert not {name for name in wheel if "baselines" in name or "virtual_gpu" in name or name.startswith("tests/")}


def test_every_module_of_the_product_is_in_the_wheel(wheel: set[str]) -> None:
    for package in map(Path, PACKAGES):
        modules = {path.relative_to(ROOT / package.parent).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert modules <= wheel
        assert len(modules) > 20
