"""Listening sockets: errors name the cause, and files of others are not removed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from plumage.errors import ConfigurationError
from plumage.settings.router_config import ListenConfig
from plumage_router.http.listening_sockets import address, bind, unbind


def _listen(path: Path | str, port: int | None = None) -> ListenConfig:
    return ListenConfig(port=port, uds=str(path))


def _server(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_other_file_is_not_removed(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("precious")
    with pytest.raises(ConfigurationError, match="not a socket"):
        bind(_listen(file))
    link = tmp_path / "link.sock"
    link.symlink_to(file)
    with pytest.raises(ConfigurationError, match="not a socket"):
        bind(_listen(link))
    assert link.is_symlink()
    assert file.read_text() == "precious"


def test_socket_in_use_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "router.sock"
    with _server(path) as server:
        with pytest.raises(ConfigurationError, match="another process"):
            bind(_listen(path))
        server.accept()[0].close()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_abandoned_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "router.sock"
    _server(path).close()
    assert path.is_socket()
    (sock,) = bind(_listen(path))
    assert address(sock) == str(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    unbind(sock)
    assert not path.exists()


@pytest.mark.parametrize(("name", "message"), [("none/router.sock", "No such file"), ("x" * 200, "too long")])
def test_failed_path_frees_the_port(tmp_path: Path, name: str, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(ConfigurationError, match=message):
        bind(_listen(tmp_path / name, port))
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_error_names_the_used_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"{port}: .*choose another port"):
            bind(ListenConfig(port=port))


def test_failed_bind_leaks_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("file", "none/router.sock", "x" * 200):
        with pytest.raises(ConfigurationError):
            bind(_listen(tmp_path / name, 0))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
