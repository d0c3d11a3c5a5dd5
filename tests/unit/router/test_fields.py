"""Content parts: known types with their own keys, and no URL that an engine would fetch."""

from __future__ import annotations

from typing import Any

import pytest

from plumage_router.http.errors import RequestError
from plumage_router.request.fields import check_messages

ADDRESS = "http://169.254.169.254/latest"
DATA = "data:image/png;base64,AA=="


def _check(part: Any, allow_media: bool = False) -> None:
    check_messages([{"role": "user", "content": [part]}], allow_media=allow_media)


def _refusal(part: Any, allow_media: bool = False) -> tuple[str | None, str | None]:
    with pytest.raises(RequestError) as refused:
        _check(part, allow_media)
    assert refused.value.status == 400
    return refused.value.param, refused.value.code


GOOD = [
    {"type": "text", "text": "x"},
    {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}},
    {"type": "input_text", "text": "x"},
    {"type": "output_text", "text": "x", "annotations": []},
    {"type": "refusal", "refusal": "no"},
    {"type": "thinking", "thinking": "hm", "closed": True},
    {"type": "tool_reference", "name": "f"},
    {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}},
    {"type": "image_url", "image_url": DATA},
    {"type": "input_image", "image_url": DATA, "detail": "auto"},
    {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AA=="}},
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}},
    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    {"type": "image_embeds", "image_embeds": "AA=="},
]


@pytest.mark.parametrize("part", GOOD, ids=lambda part: part["type"])
def test_allowed_parts_pass(part: dict[str, Any]) -> None:
    _check(part)


@pytest.mark.parametrize("kind", ["image_url", "input_image", "audio_url", "video_url"])
@pytest.mark.parametrize(
    "address", [ADDRESS, "https://x/y", "file:///etc/passwd", "ftp://x", "//x", " data:,", "DATA:,", ""]
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_media_url_needs_allow_media(kind: str, address: str, wrapped: bool) -> None:
    key = "image_url" if kind == "input_image" else kind
    part = {"type": kind, key: {"url": address} if wrapped else address}
    assert _refusal(part) == (f"messages[0].content[0].{key}", "media_url")
    _check(part, allow_media=True)


@pytest.mark.parametrize("allow_media", [True, False])
@pytest.mark.parametrize("kind", [part["type"] for part in GOOD if part["type"] not in ("image_url", "input_image")])
def test_part_with_hidden_url_is_refused(kind: str, allow_media: bool) -> None:
    part = next(part for part in GOOD if part["type"] == kind)
    for url in ({"url": ADDRESS}, ADDRESS, None):
        hidden = _refusal({**part, "image_url": url}, allow_media)
        assert hidden == ("messages[0].content[0].image_url", "field_not_allowed")


@pytest.mark.parametrize(
    ("part", "key", "code"),
    [
        ({"type": "zzz", "image_url": {"url": ADDRESS}}, "type", "invalid_type"),
        ({"type": "image_pil", "image_pil": ADDRESS}, "type", "invalid_type"),
        ({"type": "prompt_embeds", "data": "AA=="}, "type", "invalid_type"),
        ({"image_url": {"url": ADDRESS}}, "type", "invalid_type"),
        ({"type": None, "image_url": ADDRESS}, "type", "invalid_type"),
        ({"type": ["text"], "text": "x"}, "type", "invalid_type"),
        ({"type": "text", "text": "x", "uuid": "u", "image_url": ADDRESS}, "image_url", "field_not_allowed"),
        ({"type": "image_url", "image_url": {"url": DATA}, "uuid": "u"}, "uuid", "field_not_allowed"),
        ({"type": "image_url", "image_url": {"url": DATA}, "video_url": ADDRESS}, "video_url", "field_not_allowed"),
        ({"type": "image_url", "image_url": {"url": DATA, "more": ADDRESS}}, "image_url", "invalid_type"),
        ({"type": "image_url", "image_url": {"url": [ADDRESS]}}, "image_url", "invalid_type"),
        ({"type": "image_url", "image_url": [ADDRESS]}, "image_url", "invalid_type"),
        ({"type": "image_url"}, "image_url", "invalid_type"),
        ({"type": "input_audio", "input_audio": ADDRESS}, "input_audio", "invalid_type"),
        ({"type": "input_audio", "input_audio": {"data": 1, "format": "wav"}}, "input_audio", "invalid_type"),
        ({"type": "image_embeds", "image_embeds": [1]}, "image_embeds", "invalid_type"),
        ({"type": "refusal", "refusal": None}, "refusal", "invalid_type"),
    ],
)
def test_other_parts_are_refused(part: dict[str, Any], key: str, code: str | None) -> None:
    assert _refusal(part) == (f"messages[0].content[0].{key}", code)
