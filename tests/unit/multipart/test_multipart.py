"""Forms: what the router accepts, python-multipart (the parser of vLLM's server) reads in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartParser

from plumage.multipart import MAX_PARTS, FormError, Part, boundary_of, content_type, find_parts

B = b"--x\r\n"
END = b"--x--\r\n"
FIELD = b'Content-Disposition: form-data; name="model"\r\n\r\ntiny\r\n'
FILE = (
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n\x00\xff\r\n\r\n'
)


def read(body: bytes, boundary: bytes = b"x") -> list[Part]:
    steps = find_parts(body, boundary)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def values(body: bytes, boundary: bytes = b"x") -> list[tuple[str, bool, bytes]]:
    return [(part.name, part.is_file, body[part.start : part.end]) for part in read(body, boundary)]


def as_an_engine(body: bytes, header: bytes) -> list[tuple[str, bool, bytes]]:
    """What Starlette's parser, which vLLM uses, finds."""

    async def stream() -> AsyncIterator[bytes]:
        yield body

    async def run() -> list[tuple[str, bool, bytes]]:
        parser = MultiPartParser(Headers(raw=[(b"content-type", header)]), stream())  # type: ignore[arg-type]
        form = await parser.parse()
        found = []
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                found.append((name, True, await value.read()))
                await value.close()
            else:
                found.append((name, False, value.encode()))
        return found

    return asyncio.run(run())


def test_fields_and_files_are_found_where_they_are() -> None:
    body = B + FIELD + B + FILE + END
    assert values(body) == [("model", False, b"tiny"), ("file", True, b"\x00\xff\r\n")]
    assert values(body[:-2]) == values(body), "the last line break may be missing"
    assert values(b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n--x--') == [("a", False, b"")]


def test_large_file_is_searched_in_slices() -> None:
    body = B + FIELD + B + FILE[:-2] + b"\r\n--y" * 1_000_000 + b"\r\n" + END
    steps, slices = find_parts(body, b"x"), 0
    while next(steps, steps) is None:
        slices += 1
    assert slices >= 4
    assert [name for name, _, _ in values(body)] == ["model", "file"]


@pytest.mark.parametrize("cut", range((1 << 20) - 12, (1 << 20) + 6))
def test_boundary_across_two_slices_is_found(cut: int) -> None:
    head = B + b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    body = head + b"a" * cut + b"\r\n" + B + FIELD + END
    assert values(body)[0] == ("file", True, b"a" * cut)


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        (b"multipart/form-data; boundary=x", b"x"),
        (b'Multipart/Form-Data;boundary="a b"', None),
        (b'multipart/form-data; boundary="=_Part:1"; charset=UTF-8', b"=_Part:1"),
        (b"multipart/form-data; charset=utf-16; boundary=x", None),
        (b"multipart/form-data; boundary=x; boundary=y", None),
        (b"multipart/form-data; boundary=" + b"x" * 71, None),
        (b"multipart/form-data", None),
        (b"multipart/form-data; boundary=", None),
        (b"multipart/mixed; boundary=x", None),
        (b"application/json", None),
        (b"multipart/form-data; boundary*=utf-8''x; boundary=y", None),
    ],
)
def test_boundary_is_read_from_the_header(header: bytes, boundary: bytes | None) -> None:
    if boundary is None:
        with pytest.raises(FormError):
            boundary_of(header)
    else:
        assert boundary_of(header) == boundary == boundary_of(content_type(boundary))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"preamble\r\n" + B + FIELD + END,
        b"\r\n" + B + FIELD + END,
        B + FIELD,
        B + FIELD + END + b"more",
        B + FIELD[:-2] + b"\r\n--x " + FIELD + END,
        B + b'Content-Disposition: form-data; name="a\\"b"\r\n\r\n1\r\n' + END,
        B + b'Content-Disposition: form-data; name="a"; name="b"\r\n\r\n1\r\n' + END,
        B + b"Content-Disposition: form-data; name*=utf-8''a\r\n\r\n1\r\n" + END,
        B + b'Content-Disposition: form-data; filename="a"\r\n\r\n1\r\n' + END,
        B + b'Content-Disposition: attachment; name="a"\r\n\r\n1\r\n' + END,
        B + b'Content-Disposition: form-data;\r\n name="a"\r\n\r\n1\r\n' + END,
        B + b'Content-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; name="b"\r\n\r\n1\r\n' + END,
        B + b'Content-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64\r\n\r\nMQ==\r\n' + END,
        B + b'Content-Disposition: form-data; name="a"\r\nX-Other: 1\r\n\r\n1\r\n' + END,
        B + b'Content-Disposition: form-data; name="a"\n\n1\r\n' + END,
        B + b'Content-Disposition: form-data; name="a\x00"\r\n\r\n1\r\n' + END,
        B + b"X: " + b"y" * 5000 + b"\r\n\r\n1\r\n" + END,
        (B + FIELD) * (MAX_PARTS + 1) + END,
    ],
)
def test_what_parsers_may_read_differently_is_refused(body: bytes) -> None:
    with pytest.raises(FormError):
        read(body)


@pytest.mark.parametrize("files", [{"file": ("a.wav", b"RIFF\r\n--", "audio/wav")}, {"file": ("é x.wav", b"")}])
def test_forms_of_httpx_are_read(files: Any) -> None:
    sent = httpx.Request("POST", "http://x", data={"model": "tiny", "prompt": "é\r\n--"}, files=files)
    body, header = sent.read(), sent.headers["content-type"].encode()
    assert values(body, boundary_of(header)) == as_an_engine(body, header)
    assert len(read(body, boundary_of(header))) == 3


_PIECES = [
    b"--x",
    b"\r\n", b"--", b"\n", b"\r", b" ", b"\t", b";", b'"', b"'", b"\\", b"=", b":", b"a", b"b", b"\x00", b"\xff",
    b"model", b"file", b"form-data", b"name", b"filename", b"filename*", b"utf-8''", b"%22", b"Content-Disposition: ",
    b"Content-Type: text/plain", b"Content-Length: 1", b"Content-Transfer-Encoding: binary", FIELD, FILE, B, END,
    b'; name="b"', b'; filename="b"', b"; filename*=utf-8''b", b"; name=b",
]  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A form with some of its bytes replaced by others that matter to a parser."""
    parts = draw(st.lists(st.sampled_from([FIELD, FILE]), max_size=4))
    body = b"".join(B + part for part in parts) + END
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body)))
        cut = draw(st.integers(0, 12))
        body = body[:at] + b"".join(draw(st.lists(st.sampled_from(_PIECES), max_size=3))) + body[at + cut :]
    return body


@given(bodies())
@settings(max_examples=500, deadline=None)
def test_engine_reads_the_same_fields(body: bytes) -> None:
    try:
        found = values(body)
    except FormError:
        return
    there = as_an_engine(body, content_type(b"x"))
    assert [(name, is_file) for name, is_file, _ in found] == [(name, is_file) for name, is_file, _ in there]
    for (_, _, here), (_, is_file, other) in zip(found, there, strict=True):
        assert here == other or (not is_file and b"\xff" in here), "text that is not UTF-8 is refused by the reader"
