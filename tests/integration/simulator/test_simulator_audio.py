"""Transcriptions and translations of a simulated engine, over real sockets, with OpenAI's own client."""

from __future__ import annotations

import io
import wave
from typing import Any

import httpx
import openai
import pytest
from tests.integration.simulator.conftest import Engine

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")


def sound(seconds: float, tone: int = 0) -> bytes:
    """A WAV file of 8 kHz."""
    data = io.BytesIO()
    with wave.open(data, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(8000)
        made.writeframes(bytes([tone, 0]) * int(8000 * seconds))
    return data.getvalue()


def client(engine: Engine) -> openai.OpenAI:
    key = engine.client.headers["authorization"].removeprefix("Bearer ")
    return openai.OpenAI(base_url=str(engine.client.base_url.join("/v1")), api_key=key, max_retries=0)


def post(engine: Engine, path: str = PATHS[0], file: bytes | None = None, **fields: Any) -> httpx.Response:
    files = {"file": ("a.wav", sound(1.0) if file is None else file)}
    return engine.client.post(path, data={"model": "tiny", **fields}, files=files)


def test_equal_files_have_equal_words_and_others_do_not(engine: Engine) -> None:
    with client(engine) as one:
        texts = [
            one.audio.transcriptions.create(model="tiny", file=("a.wav", sound(2.5, tone))).text for tone in (1, 1, 2)
        ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].strip()


def test_stream_has_the_words_and_the_usage_of_vllm(engine: Engine) -> None:
    file = sound(2.5, 3)
    with client(engine) as one:
        whole = one.audio.transcriptions.create(model="tiny", file=("a.wav", file))
        stream = one.audio.transcriptions.create(
            model="tiny", file=("a.wav", file), stream=True, extra_body={"stream_include_usage": "true"}
        )
        events: list[Any] = list(stream)
    assert "".join(event.choices[0]["delta"]["content"] for event in events[:-1]) == whole.text
    assert events[-2].choices[0]["finish_reason"] in ("stop", "length")
    assert events[-1].choices == []
    assert events[-1].usage["prompt_tokens"] == 250, "a hundred frames a second"
    assert {event.object for event in events} == {"transcription.chunk"}


def test_answers_have_the_forms_of_vllm(engine: Engine) -> None:
    assert post(engine, file=sound(1.2)).json()["usage"] == {"type": "duration", "seconds": 2}
    assert post(engine, response_format="text").json().keys() == {"text", "usage"}
    assert post(engine, PATHS[1]).json().keys() == {"text"}
    verbose = post(engine, response_format="verbose_json", language="de", file=sound(4.0)).json()
    assert (verbose["duration"], verbose["language"]) == (4.0, "de")
    assert verbose["segments"][0]["start"] == 0.0
    assert verbose["segments"][-1]["end"] == 4.0
    assert "".join(part["text"] for part in verbose["segments"]) == verbose["text"]


def test_file_that_is_no_wav_is_taken_by_its_size(engine: Engine) -> None:
    assert post(engine, file=b"OggS" + b"\x00" * 31_996).json()["usage"]["seconds"] == 2


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"model": "nobody"}, 404, "nobody"),
        ({"response_format": "srt"}, 400, "Currently only support response_format"),
        ({"response_format": "vtt"}, 400, "Currently only support response_format"),
        ({"response_format": "diarized_json"}, 400, "do not support diarized_json"),
        ({"response_format": "verbose_json", "stream": "true"}, 400, "doesn't support streaming"),
        ({"stream_include_usage": "true"}, 400, "stream=True"),
        ({"file": b"RIFF\x00\x00\x00\x00WAVE"}, 400, "Invalid or unsupported audio file."),
        ({"seed": "x"}, 400, "seed"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_wrong_request_is_refused(engine: Engine, path: str, fields: dict[str, Any], status: int, word: str) -> None:
    got = post(engine, path, **fields)
    assert got.status_code == status
    assert word in got.json()["error"]["message"]


def test_form_without_a_file_and_other_bodies_are_refused(engine: Engine) -> None:
    assert engine.client.post(PATHS[0], json={"model": "tiny"}).status_code == 400
    assert engine.client.post(PATHS[0], files={"model": (None, "tiny")}).status_code == 400
