"""docs/reference/manifest.md is generated from the models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_field_reference_is_current() -> None:
    script = ROOT / "scripts" / "make_manifest_reference.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "run: python scripts/make_manifest_reference.py"
