"""A process whose certificate authority changed exits, so that the next one trusts the current authority."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plumage_operator.kube.credentials import AuthorityChangedError, watch_authority


async def keeps_running(file: str | None) -> bool:
    try:
        async with asyncio.timeout(0.2):
            await watch_authority(file, every=0.01)
    except TimeoutError:
        return True


async def test_changed_authority_ends_the_process(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text("old")
    trusting = asyncio.create_task(watch_authority(str(file), every=0.01))
    await asyncio.sleep(0)
    file.write_text("old and new")
    with pytest.raises(AuthorityChangedError, match="another certificate authority"):
        async with asyncio.timeout(60):
            await trusting


async def test_unreadable_authority_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    assert await keeps_running(str(file))
    assert await keeps_running(None)
    file.write_text("same")
    assert await keeps_running(str(file))
    trusting = asyncio.create_task(watch_authority(str(file), every=0.01))
    await asyncio.sleep(0)
    file.unlink()
    await asyncio.sleep(0.1)
    assert not trusting.done()
    trusting.cancel()
