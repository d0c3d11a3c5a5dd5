"""The files in crds/ are generated from the models."""

from __future__ import annotations

import subprocess
import sys

from support.crds import CRDS


def test_definitions_are_current() -> None:
    script = CRDS.parent / "scripts" / "make_crds.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"run: make crds\n{done.stderr}"
