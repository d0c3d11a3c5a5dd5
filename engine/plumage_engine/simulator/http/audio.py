"""`POST /v1/audio/transcriptions` and `/v1/audio/translations` of the simulator, in the form of vLLM 0.32
(`entrypoints/speech_to_text`).

Nobody listens to the audio: equal files get the same random words. A file costs the device what Whisper's encoder
computes, 50 positions a second, and counts in the usage as vLLM counts it, by spectrogram frames.
"""

from __future__ import annotations

import io
import math
import time
import wave
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import orjson
import xxhash

from plumage.multipart import FormError, Part, boundary_of, find_parts
from plumage_engine.simulator.http.completions import Completions, Scope
from plumage_engine.simulator.http.prompts import Prompts
from plumage_engine.simulator.http.protocol import ApiError, Generation, read_generation
from plumage_engine.simulator.http.replies import Reply
from plumage_engine.simulator.job import Job
from plumage_engine.simulator.runner import Runner

__all__ = ["Audio", "AudioReply"]

_MOST_FILE: Final = 25 * 2**20  # bytes; vLLM's VLLM_MAX_AUDIO_CLIP_FILESIZE_MB
_POSITIONS: Final = 50  # a second
_FRAMES: Final = 100  # a second
_BYTE_RATE: Final = 16_000  # of a file that is no WAV: 128 kbit/s
_ANSWER: Final = 448  # tokens; Whisper's longest
_WORDS: Final = 8  # in a segment
_FORMATS: Final = ("text", "json", "verbose_json", "diarized_json")
_TRUE: Final = ("true", "1")


@dataclass(frozen=True, slots=True)
class _Heard(Generation):
    """What a form asks for. seconds: the length of the audio."""

    seconds: float
    language: str
    form: str


class Audio(Completions):
    """One of the two endpoints."""

    def __init__(
        self, runner: Runner, prompts: Prompts, *, task: Literal["transcribe", "translate"], **limits: Any
    ) -> None:
        super().__init__(runner, prompts, chat=False, **limits)
        self._task = task

    def _read(self, data: bytes, scope: Scope) -> Generation:
        form, sound = _read_form(data, dict(scope["headers"]).get(b"content-type", b""))
        model = form.get("model", "")
        stream = form.get("stream", "").lower() in _TRUE
        wanted = _check_format(form.get("response_format") or "json", model, stream=stream)
        if len(sound) > _MOST_FILE:
            raise ApiError(400, "Maximum file size exceeded", param="audio_filesize_mb")
        seconds = _seconds(sound)
        room = self._prompts.max_model_len - _ANSWER
        if room < 1:
            raise ApiError(400, f"the context is shorter than an answer of {_ANSWER} tokens", param="file")
        positions = min(room, max(1, math.ceil(seconds * _POSITIONS)))
        usage = form.get("stream_include_usage", "").lower() in _TRUE
        body: dict[str, Any] = {
            "model": model,
            "prompt": self._prompts.stand_in(xxhash.xxh3_64_intdigest(sound), positions),
            "stream": stream,
            "max_tokens": _whole(form, "max_completion_tokens", _ANSWER),
            "seed": _whole(form, "seed", None),
        }
        if usage and not stream:
            message = "Stream options can only be defined when `stream=True`."
            raise ApiError(400, message, param="stream_include_usage")
        if usage:
            every = form.get("stream_continuous_usage_stats", "").lower() in _TRUE
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": every}
        made = read_generation(body, chat=False)
        copied = {one.name: getattr(made, one.name) for one in fields(made)}
        return _Heard(**copied, seconds=seconds, language=form.get("language") or "en", form=wanted)

    def _reply(self, job: Job, generation: Generation) -> Reply:
        assert isinstance(generation, _Heard)
        name = str(job.request.request_id).removeprefix("cmpl-")
        return AudioReply(
            f"{self._task}-{name}",
            generation.model,
            translates=self._task == "translate",
            seconds=generation.seconds,
            language=generation.language,
            verbose=generation.form == "verbose_json",
            words=list(zip(job.answer.token_ids, job.answer.texts, strict=True)),
        )


class AudioReply(Reply):
    """The frame of one answer. words: its token ids with their texts."""

    def __init__(
        self,
        request_id: str,
        model: str,
        *,
        translates: bool,
        seconds: float,
        language: str,
        verbose: bool,
        words: Sequence[tuple[int, str]],
    ) -> None:
        super().__init__(request_id, model, chat=True)
        kind = "translation.chunk" if translates else "transcription.chunk"
        self._fixed = {"id": request_id, "object": kind, "created": int(time.time()), "model": model}
        self._translates, self._seconds, self._language = translates, seconds, language
        self._verbose, self._words = verbose, words

    def whole(self, text: str, finish_reason: str, stop_reason: str | None, usage: dict[str, Any]) -> bytes:
        answer: dict[str, Any] = {"text": text}
        if self._verbose:
            answer |= {"duration": self._seconds, "language": self._language, "segments": self._segments()}
            answer["words"] = None
        elif not self._translates:
            answer["usage"] = {"type": "duration", "seconds": math.ceil(self._seconds)}
        return orjson.dumps(answer)

    def opening(self, usage: dict[str, Any] | None = None) -> bytes:
        return b""

    def delta(self, text: str, usage: dict[str, Any] | None = None) -> bytes:
        return self._chunk([{"delta": {"content": text}}], usage)

    def last(
        self, text: str, finish_reason: str, stop_reason: str | None, usage: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"delta": {"content": text}, "finish_reason": finish_reason, "stop_reason": stop_reason}
        return self._chunk([choice], usage)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._chunk([], usage)

    def _chunk(self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None) -> bytes:
        more: dict[str, Any] = {}
        if usage is not None:
            given, completion = math.ceil(self._seconds * _FRAMES), int(usage["completion_tokens"])
            more["usage"] = {
                "prompt_tokens": given, "total_tokens": given + completion, "completion_tokens": completion,
            }  # fmt: skip
        return b"data: " + orjson.dumps({**self._fixed, "choices": choices, **more}) + b"\n\n"

    def _segments(self) -> list[dict[str, Any]]:
        """The words, spread over the audio."""
        parts = [self._words[at : at + _WORDS] for at in range(0, len(self._words), _WORDS)]
        each = self._seconds / len(parts)
        segments = []
        for number, part in enumerate(parts):
            text = "".join(word for _, word in part)
            data = text.encode()
            segments.append(
                {
                    "id": number, "avg_logprob": -0.2, "compression_ratio": len(data) / len(zlib.compress(data)),
                    "start": round(number * each, 2), "end": round((number + 1) * each, 2), "no_speech_prob": None,
                    "seek": 0, "temperature": 0.0, "text": text, "tokens": [token for token, _ in part],
                }
            )  # fmt: skip
        return segments


def _read_form(data: bytes, kind: bytes) -> tuple[dict[str, str], bytes]:
    """The fields of a form by name, and its file. ApiError for what is no form with a file."""
    found: dict[str, str] = {}
    sound: bytes | None = None
    for part in _parts(data, kind):
        value = data[part.start : part.end]
        if part.is_file and part.name == "file":
            sound = value
        elif part.is_file or part.name == "file":
            raise ApiError(422, f"{part.name}: only file is a file", param=part.name)
        else:
            found[part.name] = value.decode(errors="replace")
    if sound is None:
        raise ApiError(400, "file: Field required", param="file")
    if found.get("use_beam_search", "").lower() in _TRUE:
        raise ApiError(400, "use_beam_search is not supported by the simulator; leave it out", param="use_beam_search")
    return found, sound


def _parts(data: bytes, kind: bytes) -> list[Part]:
    try:
        steps = find_parts(data, boundary_of(kind))
        while True:
            next(steps)
    except FormError as error:
        raise ApiError(400, f"the form cannot be read: {error}") from error
    except StopIteration as end:
        parts: list[Part] = end.value
        return parts


def _check_format(wanted: str, model: str, *, stream: bool) -> str:
    """vLLM's checks of the format, in its words."""
    if wanted not in _FORMATS:
        known = "`text`, `json`, `verbose_json` or `diarized_json`"
        raise ApiError(400, f"Currently only support response_format: {known}")
    if wanted == "diarized_json":
        raise ApiError(400, f"Currently do not support diarized_json for {model}")
    if wanted == "verbose_json" and stream:
        raise ApiError(400, "verbose_json format doesn't support streaming case")
    return wanted


def _whole(form: Mapping[str, str], name: str, default: int | None) -> int | None:
    given = form.get(name)
    if not given:
        return default
    try:
        return int(given)
    except ValueError:
        raise ApiError(400, f"{name} must be a whole number, got {given[:64]!r}", param=name) from None


def _seconds(sound: bytes) -> float:
    """The length of a WAV file; an estimate by size of any other. ApiError for a broken WAV."""
    if sound[:4] != b"RIFF" or sound[8:12] != b"WAVE":
        return len(sound) / _BYTE_RATE
    try:
        with wave.open(io.BytesIO(sound)) as opened:
            return float(opened.getnframes() / opened.getframerate())
    except (wave.Error, EOFError, ZeroDivisionError):
        raise ApiError(400, "Invalid or unsupported audio file.") from None
