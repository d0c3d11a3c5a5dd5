"""The sizes of a request's texts without rendering them. Pure, and fast for every request that `fields` allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["MAX_RENDERED", "printable_bytes", "text_lengths"]

MAX_RENDERED: Final = 4 << 20
"""Bytes of the longest prompt that the router renders, about a million tokens of English. A longer one is routed
without knowledge of caches."""

_TEXTS: Final = ("prompt", "input", "query", "documents", "text_1", "text_2", "queries", "items", "data_1", "data_2")
_MEDIA: Final = ("image_url", "input_image", "audio_url", "video_url", "input_audio", "image_embeds", "audio_embeds",
                 "video_embeds")  # fmt: skip


def text_lengths(body: Mapping[str, Any]) -> Iterator[int]:
    """Yields the characters of all messages of a chat together, or of each other text that an engine tokenizes."""
    messages = body.get("messages")
    if messages is not None:
        yield sum(_text_length(message.get("content")) for message in messages)
        return
    for name in _TEXTS:
        value = body.get(name)
        yield from (len(text) for text in (value if isinstance(value, list) else (value,)) if isinstance(text, str))


def printable_bytes(body: Mapping[str, Any], size: int) -> int:
    """The most bytes that a template may print of a body of `size` bytes: all but images, audio and video."""
    parts = (part for message in body.get("messages") or () for part in _parts(message.get("content")))
    return size - sum(_media_length(part) for part in parts if part.get("type") in _MEDIA)


def _parts(content: Any) -> list[Mapping[str, Any]]:
    return content if isinstance(content, list) else []


def _text_length(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(len(part["text"]) for part in _parts(content) if isinstance(part.get("text"), str))


def _media_length(part: Mapping[str, Any]) -> int:
    value = part.get(part["type"], part.get("image_url"))
    texts = value.values() if isinstance(value, dict) else (value,)
    return sum(len(text) for text in texts if isinstance(text, str))
