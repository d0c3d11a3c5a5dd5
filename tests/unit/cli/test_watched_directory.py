"""The directory's server of a local pool: a restart that fails is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumage.errors import PlumageError
from plumage_cli.errors import CliError
from plumage_cli.local.processes.directory_server import WatchedDirectory


async def test_failed_restart_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = WatchedDirectory(tmp_path, 1 << 20)

    def fail() -> None:
        raise PlumageError("no memory")

    monkeypatch.setattr(directory._server, "start", fail)
    with pytest.raises(CliError, match="the directory's server did not start: no memory"):
        await directory.restart()
    assert directory.restarts == 1
