"""Forms as a router sends them on, read by vLLM's own route: it finds the fields that the router checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from vllm.entrypoints.speech_to_text.transcription.api_router import router as transcriptions
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionResponse
from vllm.entrypoints.speech_to_text.translation.api_router import router as translations
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationResponse

from plumage.multipart import boundary_of, content_type
from plumage_router.http.body_memory import BodyBuffer
from plumage_router.http.time_slicing import run_now
from plumage_router.request.audio import audio_payload, check_audio, read_form

SOUND = bytes(range(256)) * 300 + b"\r\n--"
FIELDS: dict[str, Any] = {
    "language": "de", "prompt": "Größe\r\n--x", "response_format": "verbose_json", "hotwords": "a, b",
    "temperature": "0.5", "top_p": "1", "top_k": "-1", "min_p": "0", "seed": "-3", "to_language": "en",
    "max_completion_tokens": "7", "n": "2", "presence_penalty": "-1e0",
}  # fmt: skip


class Handler:
    """Takes the place of vLLM's handlers behind its routes."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def create_transcription(self, audio: bytes, request: Any, raw: Any) -> TranscriptionResponse:
        self.seen.append((audio, request))
        return TranscriptionResponse(text="x", usage={"type": "duration", "seconds": 1})

    async def create_translation(self, audio: bytes, request: Any, raw: Any) -> TranslationResponse:
        self.seen.append((audio, request))
        return TranslationResponse(text="x")


@pytest.fixture
def vllm() -> Iterator[tuple[TestClient, Handler]]:
    app, handler = FastAPI(), Handler()
    app.include_router(transcriptions)
    app.include_router(translations)
    app.state.openai_serving_transcription = app.state.openai_serving_translation = handler
    app.state.enable_server_load_tracking = False
    with TestClient(app) as client:
        yield client, handler


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
@pytest.mark.parametrize("more", [{}, {"stream": "true"}, {"stream": "True", "stream_include_usage": "0"},
                                  {"stream": "1", "stream_include_usage": "TRUE"}])  # fmt: skip
def test_vllm_reads_the_fields_that_the_router_checked(
    vllm: tuple[TestClient, Handler], path: str, more: dict[str, str]
) -> None:
    client, handler = vllm
    fields = {**FIELDS, **more}
    if path.endswith("transcriptions"):
        fields["timestamp_granularities[]"] = ["word", "segment"]
    files = {"file": ("ä b.wav", SOUND, "audio/wav")}
    sent = httpx.Request("POST", "http://x", data={"model": "whisper-1", **fields}, files=files)
    form = run_now(read_form(BodyBuffer(sent.read()), boundary_of(sent.headers["content-type"].encode())))
    check_audio(path.encode(), form, ())
    body = audio_payload(form, "tiny")
    got = client.post(path, content=body, headers={"content-type": content_type(form.boundary).decode()})
    assert got.status_code == 200, got.text
    ((audio, request),) = handler.seen
    assert audio == SOUND
    assert (request.model, request.prompt, request.seed) == ("tiny", fields["prompt"], -3)
    assert (request.temperature, request.max_completion_tokens) == (0.5, 7)
    assert (request.stream, request.stream_include_usage) == ("stream" in more, "stream" in more)
    if path.endswith("transcriptions"):
        assert request.timestamp_granularities == ["word", "segment"]
