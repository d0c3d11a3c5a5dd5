"""Conversations that must be rendered from the start are served and counted."""

from __future__ import annotations

from typing import Any

import pytest

from plumage.rendering.incremental import IncrementalTemplate


async def test_render_fallbacks_are_counted(start: Any, kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(IncrementalTemplate, "render", wrong)
    running = await start(engines=1)
    said = [{"role": "user", "name": "a", "content": f"text {number}"} for number in range(30)]
    for _ in range(2):
        assert (await running.post({"model": "tiny", "messages": said})).status == 200
    text = (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    assert 'plumage_router_render_fallbacks_total{error="ZeroDivisionError"} 2\n' in text
