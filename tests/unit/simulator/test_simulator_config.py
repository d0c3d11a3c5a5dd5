"""The simulator's configuration: where its events may travel, and refused settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.configuration import read_file
from plumage_engine.simulator.engine.settings import engine_settings

GOOD: dict[str, Any] = {"model": "tiny", "modelFolder": "/models/tiny", "port": 8101}


def read(folder: Path, **changes: Any) -> SimulatorConfig:
    path = folder / "engine.json"
    path.write_text(json.dumps({**GOOD, **changes}))
    return read_file(path, SimulatorConfig)


def test_events_travel_over_sockets_in_a_shared_folder(tmp_path: Path) -> None:
    config = read(tmp_path, eventsEndpoint="ipc:///run/e", replayEndpoint="ipc:///run/r")
    assert (config.events_endpoint, config.replay_endpoint) == ("ipc:///run/e", "ipc:///run/r")
    assert read(tmp_path).events_endpoint is None


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:5557", "tcp://*:5557", "udp://x:1", "pgm://x", "/run/e", "ipc://"]
)
@pytest.mark.parametrize("name", ["eventsEndpoint", "replayEndpoint"])
def test_events_never_travel_over_a_network(tmp_path: Path, name: str, endpoint: str) -> None:
    fields = {"eventsEndpoint": "ipc:///run/e", name: endpoint}
    with pytest.raises(ConfigurationError, match=f"{name}: .*must be ipc:///PATH.*never travel over a network"):
        read(tmp_path, **fields)


def test_replay_needs_events(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs eventsEndpoint"):
        read(tmp_path, replayEndpoint="ipc:///run/r")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eviction": {"policy": "Rlt", "options": {"capacity": 9}}}, "eviction policy Rlt has no option capacity: "),
        ({"eviction": {"options": {"rng": 1, "name": "x"}}}, "eviction policy Hotness has no option name, rng: "),
        ({"feather": {"policy": "QLearning", "options": {"rng": 1}}}, "batching policy QLearning has no option rng: "),
        ({"feather": {"options": {"policy": "x"}}}, "batching policy ChtOrder has no option policy: "),
        ({"device": {"overrides": {"time_scale": 2.0}}}, "device gpu has no option time_scale: "),
    ],
)
def test_option_that_the_engine_sets_itself_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        engine_settings(read(tmp_path, **changes))
