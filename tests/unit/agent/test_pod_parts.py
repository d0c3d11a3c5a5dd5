"""What an agent needs in a pod: its engine's figures, its peers by DNS name, its token."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plumage.errors import ConfigurationError
from plumage.settings.agent_config import AgentConfig, ShareConfig, WarmupConfig
from plumage_engine.agent import pool_members
from plumage_engine.agent.directory.memory_share import share_of
from plumage_engine.agent.engine.engine_metrics import EngineFigures, parse_figures
from plumage_engine.agent.lifecycle.warmup import find_peers
from plumage_engine.agent.pod_token import ensure_token
from plumage_engine.configuration import read_file

PAGE = """\
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="a b}"} 3.0
vllm:request_queue_time_seconds_bucket{engine="0",le="1.0",model_name="a b}"} 5.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="a b}"} 6.0
vllm:request_queue_time_seconds_sum{engine="0"} 4.5
vllm:request_queue_time_seconds_bucket{engine="1",le="0.3"} 1
vllm:request_queue_time_seconds_bucket{engine="1",le="1.0"} 1
vllm:request_queue_time_seconds_bucket{engine="1",le="+Inf"} 1
vllm:request_queue_time_seconds_sum{engine="1"} 0.1
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="True"} 1.0
vllm:generation_tokens_total{engine="0"} 70.0
vllm:generation_tokens_total{engine="1"} 7.0
plumage_engine_held_back{engine="0"} 2
other:thing 5
vllm:nonsense
vllm:bad{le="x"} NaN
"""


def test_figures_of_several_ranks_are_summed() -> None:
    found = parse_figures(PAGE)
    assert found.queue_wait.bounds == [0.3, 1.0]
    assert found.queue_wait.counts == [4, 6, 7]
    assert found.queue_wait.total == pytest.approx(4.6)
    assert (found.cache_tokens, found.output_tokens, found.held_back) == (16_000, 77, 2)
    assert found.ttft.count == 0


@pytest.mark.parametrize("page", ["", "\0", 'vllm:cache_config_info{block_size="None",num_gpu_blocks="3"} 1\n'])
def test_engine_without_figures(page: str) -> None:
    assert parse_figures(page) == EngineFigures()


def test_infinite_figures_are_zero() -> None:
    page = PAGE.replace("} 3.0\n", "} +Inf\n").replace("70.0", "+Inf")
    found = parse_figures(page.replace('num_gpu_blocks="1000"', 'num_gpu_blocks="Inf"'))
    assert found.queue_wait.counts == [1, 6, 7]
    assert (found.cache_tokens, found.output_tokens, found.held_back) == (0, 7, 2)


def resolve(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]) -> None:
    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        if name not in names:
            raise socket.gaierror(-2, "Name or service not known")
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in one], socket.SOCK_STREAM, 6, "", (one, 0)) for one in names[name]]

    monkeypatch.setattr(pool_members.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(pool_members.socket, "gethostname", lambda: "own")


def test_peers_by_service_name_exclude_this_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    config = WarmupConfig(peers_service="chat-engine.ns.svc", peers=("http://given:1",))
    resolve(monkeypatch, {"chat-engine.ns.svc": ["10.0.0.3", "10.0.0.2", "10.0.0.1"], "own": ["10.0.0.1"]})
    assert find_peers(config, "x") == ["http://given:1", "http://10.0.0.2:8081", "http://10.0.0.3:8081"]
    resolve(monkeypatch, {"chat-engine.ns.svc": ["fd00::1", "fd00::2"], "own": ["fd00::1"]})
    assert find_peers(config, "x")[1:] == ["http://[fd00::2]:8081"]
    resolve(monkeypatch, {"chat-engine.ns.svc": ["fd00::2", "10.0.0.2"], "own": ["10.0.0.1"]})
    assert find_peers(config, "x")[1:] == ["http://10.0.0.2:8081"], "a dual-stack pod is one pod"
    resolve(monkeypatch, {})
    assert find_peers(config, "x") == ["http://given:1"]


def test_memory_share_follows_the_pods_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    share = ShareConfig(memory=64 << 20, members_service="chat-engine.ns.svc")
    resolve(monkeypatch, {"chat-engine.ns.svc": ["10.0.0.1"]})
    alone = share_of(share)
    resolve(monkeypatch, {"chat-engine.ns.svc": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]})
    among = share_of(share)
    assert alone is not None
    assert among is not None
    assert among < alone
    resolve(monkeypatch, {})
    assert share_of(share) is None
    for wrong in ({}, {"members_file": "/x", "members_service": "y"}):
        with pytest.raises(ValidationError, match="exactly one"):
            ShareConfig.model_validate({"memory": 1, **wrong})


def test_token_of_a_pod_is_written_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "token"
    ensure_token(path)
    made = path.read_text()
    ensure_token(path)
    assert path.read_text() == made
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="volume that this user may write"):
        ensure_token(tmp_path / "absent" / "token")


def test_command_line_wins_over_the_file_and_secrets_of_the_directory_are_files(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text(
        '{"pool": "p", "replica": "of the file", "model": "m", "modelFolder": "x", "engineUrl": "http://e:1",'
        '"eventsEndpoint": "ipc:///run/e", "directoryUrl": "rediss://d:1", "directoryPasswordFile": "/s/pass word",'
        '"directoryUsername": "plumage", "directoryCaFile": "/s/ca", "listen": {"port": 0}}'
    )
    assert read_file(path, AgentConfig).replica == "of the file"
    config = read_file(path, AgentConfig, replica="of the command")
    assert config.replica == "of the command"
    assert config.directory == (
        "rediss://d:1?ssl_ca_certs=%2Fs%2Fca&password_user=plumage&password_file=%2Fs%2Fpass+word"
    )
