"""The agent's configuration: refused settings, hidden secrets, and peers from the membership file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumage.directory.publisher.held_chunks import capacity_within
from plumage.errors import ConfigurationError
from plumage.membership import Member, pack_members
from plumage.settings.agent_config import AgentConfig, ShareConfig, WarmupConfig
from plumage_engine.agent.directory.memory_share import share_of
from plumage_engine.agent.lifecycle.warmup import find_peers
from plumage_engine.configuration import read_file, read_secret

GOOD: dict[str, Any] = {
    "pool": "chat",
    "replica": "chat-0",
    "model": "tiny",
    "modelFolder": "builtin://tiny-chat",
    "engineUrl": "http://127.0.0.1:8101",
    "eventsEndpoint": "ipc:///run/events",
    "directoryUrl": "unix:///run/directory.sock",
    "listen": {"port": 8201},
}


def read(folder: Path, **changes: Any) -> AgentConfig:
    path = folder / "agent.json"
    path.write_text(json.dumps({**GOOD, **changes}))
    return read_file(path, AgentConfig)


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.heartbeat_seconds, config.stalled_seconds, config.listen.host) == (2.0, 10.0, "127.0.0.1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": ""}, "pool"),
        ({"colour": 1}, "colour"),
        ({"engineUrl": "127.0.0.1:8101"}, "engineUrl"),
        ({"eventsEndpoint": "/run/events"}, "eventsEndpoint.*must be ipc:///PATH"),
        ({"eventsEndpoint": "tcp://127.0.0.1:5557"}, "eventsEndpoint.*never travel over a network"),
        ({"replayEndpoint": "tcp://*:5558"}, "replayEndpoint.*got 'tcp"),
        ({"replayEndpoint": "ipc://"}, "replayEndpoint"),
        ({"eventsEndpoint": "ipc:///run/my events"}, "eventsEndpoint"),
        ({"heartbeatSeconds": 60}, "heartbeatSeconds"),
        ({"listen": {"port": 70000}}, "listen.port"),
        ({"listen": {"port": 1, "host": "0.0.0.0"}}, "set tokenFile"),
        ({"warmup": {"peers": ["peer"]}}, "warmup.peers"),
        ({"engineCertificateFile": "/tls.crt"}, "engineCertificateKeyFile must be set together"),
    ],
)
def test_wrong_setting_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path, **changes)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for path in (tmp_path / "absent.json", broken):
        with pytest.raises(ConfigurationError, match=str(path)):
            read_file(path, AgentConfig)


def test_secrets_are_read_without_line_break_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    secret = read_secret(path)
    assert secret is not None
    assert secret.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(secret)
    assert read_secret(None) is None
    for odd in ("a\nb", "schlüssel"):
        path.write_text(odd)
        with pytest.raises(ConfigurationError, match="one line of printable ASCII"):
            read_secret(path)
    with pytest.raises(ConfigurationError, match="cannot read the secret"):
        read_secret(Path("\0"))
    path.write_text(" \n")
    for wrong in (path, tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigurationError, match=str(wrong)):
            read_secret(wrong)


def test_peers_are_the_other_replicas(tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    members = [Member(f"chat-{n}", f"http://127.0.0.1:{8101 + n}", f"http://127.0.0.1:{8201 + n}") for n in range(3)]
    path.write_text(json.dumps(pack_members("chat", [*members, Member("chat-3", "http://127.0.0.1:8104")])))
    config = WarmupConfig(peers=("http://other:1",), peers_file=path)
    assert find_peers(config, "chat-0") == ["http://other:1", "http://127.0.0.1:8202", "http://127.0.0.1:8203"]


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"replicas": 3}', '{"replicas": ["x"]}'])
def test_invalid_membership_file_means_no_peers(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "members.json"
    if text is not None:
        path.write_text(text)
    assert find_peers(WarmupConfig(peers_file=path), "chat-0") == []


def test_memory_share_follows_the_membership_file(tmp_path: Path) -> None:
    members = tmp_path / "membership.json"
    share = ShareConfig(memory=16 << 20, replicas=2, members_file=members)
    assert share_of(share) is None, "the file does not exist yet"
    for torn in ("{", "[]", '{"replicas": 7}', "{}"):
        members.write_text(torn)
        assert share_of(share) is None
    for count, among in ((0, 2), (1, 2), (8, 8)):
        there = [Member(f"chat-{number}", "http://127.0.0.1:1") for number in range(count)]
        members.write_text(json.dumps(pack_members("chat", there)))
        assert share_of(share) == capacity_within(16 << 20, among)
