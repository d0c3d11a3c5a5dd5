"""Errors in the reuse of a conversation's beginning cost only time, and are counted and logged."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from plumage.rendering import ChatRenderer, Limits, RenderLimitError, TemplateError
from plumage.rendering.incremental import IncrementalTemplate

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
REFUSING = (
    "{% for m in messages %}{% if loop.index > 27 %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}"
)
LISTING = "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages|tojson }}"
LONG = [{"role": "user", "content": f"text {number}"} for number in range(30)]


def _renderer(template: str, **limits: int) -> ChatRenderer:
    return ChatRenderer(template, clock=lambda: datetime(2030, 5, 1, 12), limits=Limits(outlined=0, **limits))


def test_error_is_counted_and_the_first_of_each_type_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renderer = _renderer(CHATML)
    expected = "".join(f"<user>{message['content']}" for message in LONG)
    for error in (ZeroDivisionError, ZeroDivisionError, KeyError):

        def wrong(*args: Any, error: type[Exception] = error) -> str:
            raise error("a mistake")

        monkeypatch.setattr(IncrementalTemplate, "render", wrong)
        assert renderer.render_text({"messages": LONG}) == expected
    assert renderer.fallbacks.counts == {"ZeroDivisionError": 2, "KeyError": 1}
    assert [record.args for record in caplog.records] == [("ZeroDivisionError",), ("KeyError",)]
    assert all(record.exc_info for record in caplog.records)


def test_template_that_needs_a_real_list_counts_as_an_error() -> None:
    renderer = _renderer(LISTING)
    assert renderer.render_text({"messages": LONG}).endswith('"content": "text 29"}]')
    assert renderer.fallbacks.counts.total() == 1


def test_refusal_of_the_plain_template_is_no_error() -> None:
    renderer = _renderer(REFUSING)
    with pytest.raises(TemplateError, match="no"):
        renderer.render_text({"messages": LONG})
    small = _renderer(CHATML, chars=100)
    with pytest.raises(RenderLimitError):
        small.render_text({"messages": LONG})
    odd = _renderer(CHATML)
    with pytest.raises(TemplateError):
        odd.render_text({"messages": [*LONG, 7]})
    assert not renderer.fallbacks.counts + small.fallbacks.counts + odd.fallbacks.counts
