"""The commands of Redis 6.2 in the forms that Plumage may send, and a recorder of the commands that a server received.

The table has the forms of Redis 6.2's command reference, without the options of later versions (EXPIRE's NX, XADD's
KEEPREF, …). So it finds these options and newer commands. Valkey 9 accepts them, so a test on Valkey alone would not.
"""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

__all__ = ["Recorder", "Sent", "refused"]

Sent = list[bytes]

N = r"\d+"  # an integer
ID = r"(?:\d+-\d+|\d+|\$|\*)"  # the id of a stream entry
KEY = r"plumage:v\d+:\{[^}]+\}\S*"
ANY = r"\S+"

SHAPES = {  # forms of arguments; data such as field names and values is ANY
    "AUTH": f"{ANY}( {ANY})?",
    "EXPIRE": f"{KEY} {N}",
    "GET": KEY,
    "HDEL": f"{KEY}( {ANY})+",
    "HGET": f"{KEY} {ANY}",
    "HGETALL": KEY,
    "HSET": f"{KEY}( {ANY} {ANY})+",
    "HMGET": f"{KEY}( {ANY})+",
    "INCRBY": f"{KEY} {N}",
    "INFO": "(server|replication)",
    "PEXPIRE": f"{KEY} {N}",
    "PING": "",
    "SET": f"{KEY} {ANY}( NX)?( (EX|PX) {N})?( NX)?",
    "UNLINK": f"{KEY}( {KEY})*",
    "XADD": rf"{KEY}( NOMKSTREAM)?( (MAXLEN|MINID)( =| ~)? {ID})? {ID}( {ANY} {ANY})+",
    "XINFO": f"STREAM {KEY}",
    "XRANGE": rf"{KEY} (-|\(?{ID}) (\+|{ID})( COUNT {N})?",
    "XREAD": rf"((COUNT|BLOCK) {N} )*STREAMS( {KEY})+( {ID})+",
    "XREVRANGE": rf"{KEY} (\+|{ID}) (-|{ID})( COUNT {N})?",
    "XTRIM": rf"{KEY} (MAXLEN|MINID)( =| ~)? {ID}",
    # what the client library sends by itself
    "CLIENT": f"SETNAME {ANY}",
    "CLUSTER": "SLOTS",
    "COMMAND": "(GETKEYS .*)?",
    "READONLY": "",
    "SELECT": N,
}


# The client library sends its name and version: Redis 6.2 refuses it, and the library ignores the refusal.
OPTIONAL = re.compile(r"CLIENT SETINFO \S+ \S+", re.IGNORECASE)


def refused(sent: Sent) -> str | None:
    """A command that Redis 6.2 would refuse, as text; else None."""
    name, *arguments = (_shown(argument) for argument in sent)
    text = " ".join((name, *arguments))
    shape = SHAPES.get(name.upper())
    known = shape is not None and re.fullmatch(shape, " ".join(arguments), re.IGNORECASE)
    return None if known or OPTIONAL.fullmatch(text) else text


def _shown(argument: bytes) -> str:
    """The argument without blanks, so that it stays one word."""
    text = argument.decode(errors="backslashreplace")
    return re.sub(r"\s", "_", text) or "''"


class Recorder:
    """Reads a server's MONITOR during a `with` block. `sent`: every complete command of that time."""

    def __init__(self, path: Path) -> None:
        self.sent: list[Sent] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Recorder:
        self._socket.sendall(b"MONITOR\r\n")
        assert self._lines.readline() == b"+OK\r\n"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._lines.close()
        self._socket.close()

    def _listen(self) -> None:
        for line in self._lines:
            self.sent.append([_unquoted(quoted) for quoted in re.findall(rb'"((?:[^"\\]|\\.)*)"', line)])


_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}


def _unquoted(text: bytes) -> bytes:
    r"""Reverts MONITOR's quoting: \xHH, \n and so on; any other character after a backslash stays as it is."""

    def one(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code[1:], 16)]) if len(code) == 3 else _ESCAPES.get(code, code)

    return re.sub(rb"\\(x[0-9a-f]{2}|.)", one, text, flags=re.DOTALL)
