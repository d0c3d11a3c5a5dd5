"""Forms with audio: what is sent on, when the file is copied, and what is estimated."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from plumage.multipart import boundary_of
from plumage_router.http.body_memory import BodyBuffer
from plumage_router.http.errors import RequestError
from plumage_router.http.paths import TRANSCRIPTIONS_PATH, TRANSLATIONS_PATH
from plumage_router.http.time_slicing import run_now
from plumage_router.request.audio import (
    Form,
    audio_payload,
    audio_tokens,
    check_audio,
    read_form,
    usage_of_stream,
)
from plumage_router.request.usage import WantedUsage

PATHS = (TRANSCRIPTIONS_PATH, TRANSLATIONS_PATH)


def form(file: bytes = b"sound", **fields: Any) -> Form:
    sent = httpx.Request("POST", "http://x", data={"model": "tiny", **fields}, files={"file": ("a.wav", file)})
    return run_now(read_form(BodyBuffer(sent.read()), boundary_of(sent.headers["content-type"].encode())))


def again(made: Form, body: bytes) -> dict[str, str]:
    """The fields of a body that was made of a form, whose file must be the same."""
    read = run_now(read_form(BodyBuffer(body), made.boundary))
    assert body[read.file.start : read.file.end] == made.body[made.file.start : made.file.end]
    return dict(read.fields)


def test_form_without_a_change_is_not_copied() -> None:
    made = form(prompt="x")
    assert audio_payload(made, "tiny") is made.body
    asked = form(stream="true", stream_include_usage="true")
    assert audio_payload(asked, "tiny") is asked.body


def test_alias_and_usage_are_changed_in_place() -> None:
    made = form(stream="true")
    assert again(made, audio_payload(made, "other-model")) == {
        "model": "other-model", "stream": "true", "stream_include_usage": "true",
    }  # fmt: skip
    off = form(stream="true", stream_include_usage="false", stream_continuous_usage_stats="true")
    assert again(off, audio_payload(off, "tiny"))["stream_include_usage"] == "true"
    assert usage_of_stream(off) is WantedUsage.NONE
    empty = form(stream="true", stream_include_usage="")
    assert again(empty, audio_payload(empty, "tiny"))["stream_include_usage"] == "true"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, WantedUsage.NONE),
        ({"stream_include_usage": "true"}, WantedUsage.LAST),
        ({"stream_include_usage": "1", "stream_continuous_usage_stats": "TRUE"}, WantedUsage.EVERY),
    ],
)
def test_client_gets_the_usage_that_it_asks_for(fields: dict[str, str], wanted: WantedUsage) -> None:
    assert usage_of_stream(form(stream="true", **fields)) is wanted


def test_tokens_are_estimated_by_the_size_of_the_file() -> None:
    assert [audio_tokens(form(b"a" * size)) for size in (1, 320, 321, 3_200_000)] == [1, 1, 2, 10_000]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", ["1e400", "1_0", " 1", "１", "0x1", "--1", "inf", "", "0.5", "-0"])
def test_numbers_are_those_that_every_parser_reads_alike(path: bytes, value: str) -> None:
    made = form(top_p=value)
    if value in ("", "0.5", "-0"):
        check_audio(path, made, ())
        return
    with pytest.raises(RequestError) as refused:
        check_audio(path, made, ())
    assert (refused.value.code, refused.value.param) == ("invalid_type", "top_p")


def test_each_of_several_values_is_checked() -> None:
    made = form(**{"timestamp_granularities[]": ["line", "word"]})
    with pytest.raises(RequestError) as refused:
        check_audio(TRANSCRIPTIONS_PATH, made, ())
    assert refused.value.param == "timestamp_granularities[]"
