"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pool import Pool, ready_pool


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """A short folder: Unix sockets lie in it."""
    path = Path(tempfile.mkdtemp(prefix="plm-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def pool(runtime: Path) -> Iterator[Pool]:
    """A pool of two replicas, ready. Tests of other pools have a fixture of their own."""
    with ready_pool(runtime, 2) as pool:
        yield pool
