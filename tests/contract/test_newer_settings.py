"""Files that a newer operator writes, read by older processes: they ignore unknown fields and name them in the log.

A file that a person writes is read strictly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.operator_world import CONFIG, pool_object

from plumage.api.v1alpha1 import InferenceGateway, parse_manifest
from plumage.errors import ConfigurationError
from plumage.settings.agent_config import AgentConfig
from plumage.settings.simulator_config import SimulatorConfig
from plumage.version_skew import MARK, Settings
from plumage_engine.configuration import read_file
from plumage_engine.vllm.settings import read_feather, read_settings
from plumage_operator.resources import GatewayContext, PoolContext, ServedPool, build_children, build_gateway_children
from plumage_operator.resources.context import read_pool
from plumage_router.config import load_config, load_multi_pool
from plumage_router.process.config_watch import ConfigWatch

NEWER = {"novelty": {"deep": [1]}}
FEATHER = {"policy": "Bandit", "maxWaitSeconds": 7}
PAPER = {"form": "Paper", "priority": "clock"}
SIMULATED: dict[str, Any] = {
    "model": {"uri": "builtin://tiny-chat"},
    "engine": {"runtime": "Simulator", "feather": FEATHER, "eviction": {"hotness": PAPER}, "hostMemory": {}},
}
VLLM: dict[str, Any] = {
    "model": {"uri": "builtin://tiny-llama"},
    "engine": {"feather": FEATHER, "eviction": {"hotness": PAPER}, "hostMemory": {"capacity": "1Gi"}},
}


def from_file(read: Callable[[Path], Settings]) -> Callable[[Path, Any], Settings]:
    def take(folder: Path, content: Any) -> Settings:
        file = folder / f"{folder.name}.json"  # a name is logged once
        file.write_text(json.dumps(content))
        return read(file)

    return take


def plugin(_: Path, content: Any) -> Settings:
    read = read_settings(None, {"PLUMAGE_VLLM": json.dumps(content)})
    assert read is not None
    return read


READERS: dict[tuple[str, str], Callable[[Path, Any], Settings]] = {
    ("simulated", "engine.json"): from_file(lambda file: read_file(file, SimulatorConfig)),
    ("simulated", "agent.json"): from_file(lambda file: read_file(file, AgentConfig, replica="chat-0")),
    ("simulated", "router.json"): from_file(load_config),
    ("vllm", "plugin.json"): plugin,
    ("vllm", "agent.json"): from_file(lambda file: read_file(file, AgentConfig, replica="chat-0")),
    ("gateway", "router.json"): from_file(load_multi_pool),
}
CASES = [" ".join(case) for case in READERS]


def gateway_context() -> GatewayContext:
    spec = {"models": [{"name": "chat", "pools": [{"poolRef": {"name": "chat"}}]}]}
    about = {"apiVersion": "inference.plumage.dev/v1alpha1", "metadata": {"name": "front", "namespace": "default"}}
    gateway = parse_manifest({**about, "kind": "InferenceGateway", "spec": spec}, "test")
    assert isinstance(gateway, InferenceGateway)
    pool = read_pool(pool_object({**SIMULATED, "router": {"gatewayRef": {"name": "front"}}}))
    return GatewayContext(gateway, CONFIG, (ServedPool(PoolContext(pool, CONFIG, 2), ("chat",)),))


def written(reader: str, file: str) -> dict[str, Any]:
    """What the operator writes into its ConfigMap."""
    if reader == "gateway":
        made = [*build_gateway_children(gateway_context())]
    else:
        pool = read_pool(pool_object(SIMULATED if reader == "simulated" else VLLM))
        made = [*build_children(PoolContext(pool, CONFIG, 2))]
    texts = {name: text for one in made if one["kind"] == "ConfigMap" for name, text in one["data"].items()}
    content: dict[str, Any] = json.loads(texts[file])
    return content


def everywhere(content: Any, way: str = "") -> Iterator[str]:
    """Adds a field to each mapping. Returns the paths of the added fields."""
    if isinstance(content, dict):
        for name, below in list(content.items()):
            yield from everywhere(below, f"{way}{name}.")
        content |= NEWER
        yield f"{way}novelty"
    elif isinstance(content, list):
        for number, below in enumerate(content):
            yield from everywhere(below, f"{way}{number}.")


@pytest.mark.parametrize(("reader", "file"), READERS, ids=CASES)
def test_unknown_fields_of_a_newer_operator_are_ignored_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reader: str, file: str
) -> None:
    read, content = READERS[reader, file], written(reader, file)
    plain = read(tmp_path, content)
    assert plain.ignored == ()
    assert not caplog.records
    places = {*everywhere(content)}
    assert len(places) > 1
    newer = read(tmp_path, content)
    assert newer.model_dump() == plain.model_dump()
    assert {*newer.ignored} == places, "it has options of policies"
    assert read(tmp_path, content).ignored == newer.ignored
    (line,) = [record.getMessage() for record in caplog.records]
    assert all(place in line for place in places)


@pytest.mark.parametrize(("reader", "file"), READERS, ids=CASES)
@pytest.mark.parametrize("by", [None, "another user"])
def test_file_of_a_person_is_read_strictly(tmp_path: Path, reader: str, file: str, by: str | None) -> None:
    content = {name: value for name, value in written(reader, file).items() if name not in MARK}
    READERS[reader, file](tmp_path, content)
    with pytest.raises(ConfigurationError, match="novelty"):
        READERS[reader, file](tmp_path, {**content, **NEWER, **({} if by is None else {"writtenBy": by})})


@pytest.mark.parametrize(("reader", "file"), READERS, ids=CASES)
def test_wrong_value_is_an_error_in_any_file(tmp_path: Path, reader: str, file: str) -> None:
    content = written(reader, file)
    name = next(name for name, value in content.items() if isinstance(value, dict))
    with pytest.raises(ConfigurationError, match=name):
        READERS[reader, file](tmp_path, {**content, **NEWER, name: 7})


def test_engine_ignores_unknown_policy_fields_from_its_agent() -> None:
    known = {"policy": "Heuristic", "chunkTokens": 128}
    assert read_feather(json.dumps({**known, **NEWER, **MARK}).encode()) == read_feather(json.dumps(known).encode())
    with pytest.raises(ConfigurationError, match="novelty"):
        read_feather(json.dumps({**known, **NEWER}).encode())


def test_running_router_takes_known_fields_of_a_newer_file(tmp_path: Path) -> None:
    file, applied = tmp_path / "router.json", []
    content = written("simulated", "router.json")
    file.write_text(json.dumps(content))
    watch = ConfigWatch(file, load_config(file), applied.append)
    content["policy"] = {"name": "RoundRobin"}
    places = {*everywhere(content)}
    file.write_text(json.dumps(content))
    watch.check()
    (config,) = applied
    assert config.policy.name == "RoundRobin"
    assert watch.error is None
    assert {*watch.ignored} == places
