"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """A short folder: Unix sockets lie in it."""
    path = Path(tempfile.mkdtemp(prefix="plm-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
