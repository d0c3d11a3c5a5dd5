"""The checkpoint on disk: private, replaced atomically, and ignored where it cannot be trusted."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from plumage_engine.agent.index.block import VERSION, Checkpoint, Saved
from plumage_engine.agent.lifecycle.checkpoints import read, write


def checkpoint(version: int = VERSION, model: str = "m") -> Checkpoint:
    rows = [
        Saved(1, None, "", "tenant", (7, b"tail", 3), 16, False, 1, []),
        Saved(b"k", 1, "a", "", None, 32, True, 1, [(9, 30)]),
    ]
    return Checkpoint(version, model, 4, 1.5, [0, None], rows)


def test_checkpoint_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write(path, checkpoint(model="other"))
    write(path, checkpoint())
    assert read(path, "m") == checkpoint()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"rubbish", b"\x80"])
def test_torn_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "table"
    path.write_bytes(content)
    assert read(path, "m") is None
    assert read(tmp_path / "absent", "m") is None


def test_checkpoint_of_another_model_or_version_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "table"
    for other in (checkpoint(model="other"), checkpoint(version=VERSION + 1)):
        write(path, other)
        assert read(path, "m") is None


def test_full_disk_costs_only_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "no-such-folder" / "table", checkpoint())
    assert list(tmp_path.iterdir()) == []
