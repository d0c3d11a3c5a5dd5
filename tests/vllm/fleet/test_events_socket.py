"""The socket of an engine's events: an engine does not take a socket that another engine serves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from plumage.errors import ConfigurationError
from plumage_bench.vllm.engine import Engine, plugin_arguments


@pytest.mark.parametrize("taken", ["endpoint", "replay_endpoint"])
def test_used_socket_stops_start(start_engine: Callable[..., Engine], tmp_path: Path, taken: str) -> None:
    paths = {name: f"ipc://{tmp_path}/{name}" for name in ("endpoint", "replay_endpoint")}
    events = {"enable_kv_cache_events": True, "publisher": "zmq", **paths}
    with zmq.Context() as context, context.socket(zmq.XPUB) as other:
        other.bind(paths[taken])
        with pytest.raises(ConfigurationError, match=f"{taken}: process {os.getpid()} serves {paths[taken]}; end it"):
            start_engine(kv_events_config=events, **plugin_arguments({}))
        with context.socket(zmq.SUB) as agent:
            agent.subscribe(b"")
            agent.connect(paths[taken])
            assert other.poll(5000), "its agent still finds it"


def test_stale_socket_file_is_replaced(start_engine: Callable[..., Engine], tmp_path: Path) -> None:
    path = tmp_path / "events"
    with zmq.Context() as context, context.socket(zmq.XPUB) as other:
        other.bind(f"ipc://{path}")
    path.touch()
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"ipc://{path}"}
    engine = start_engine(kv_events_config=events, **plugin_arguments({}))
    assert engine.scheduler.routes.record is not None
