"""The checks of `make setup` before it changes anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def setup(folder: Path, python: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The script in an empty folder, with `python3` on the PATH."""
    programs = folder / "bin"
    programs.mkdir()
    interpreter = programs / "python3"
    interpreter.write_text(python)
    interpreter.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **more}
    script = ROOT / "scripts" / "setup.sh"
    work = folder / "work"
    work.mkdir()
    return subprocess.run(
        ["bash", str(script)], cwd=work, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


OLD = """#!/bin/sh
case "$1" in
  --version) echo "Python 3.10.14" ;;
  -c) exit 1 ;;  # what is asked is whether it is new enough
  *) echo "an old python was asked to do more: $*" >&2; exit 99 ;;
esac
"""


@pytest.mark.parametrize("variable", [{}, {"PYTHON": "python3"}], ids=["by default", "chosen"])
def test_old_python_is_refused_with_a_remedy(tmp_path: Path, variable: dict[str, str]) -> None:
    done = setup(tmp_path, OLD, **variable)
    assert done.returncode == 1
    assert "Plumage needs Python 3.11 or newer; 'python3' is Python 3.10.14." in done.stderr
    assert "make setup PYTHON=python3.12" in done.stderr
    assert list((tmp_path / "work").iterdir()) == []


def test_missing_python_is_reported(tmp_path: Path) -> None:
    done = setup(tmp_path, OLD, PYTHON="python3.99")
    assert done.returncode == 1
    assert "'python3.99' is" in done.stderr
    assert "missing" in done.stderr


def test_version_check_of_a_python_is_right(tmp_path: Path) -> None:
    """An interpreter that answers as 3.10 and as 3.11 evaluates the script's own expression."""
    real = shutil.which("python3")
    lying = f'#!/bin/sh\n[ "$1" = -c ] || exit 98\nshift\nexec {real} -c "import sys; sys.version_info = VERSION; $1"\n'
    for folder, version, status in (("a", "(3, 10, 14)", 1), ("b", "(3, 11, 0)", 98), ("c", "(4, 0, 0)", 98)):
        (tmp_path / folder).mkdir()
        done = setup(tmp_path / folder, lying.replace("VERSION", version))
        assert ("needs Python 3.11" in done.stderr) == (status == 1), (version, done.stderr)
