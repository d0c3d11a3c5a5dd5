"""Second copies of defaults: values that a process would use if a file did not name the setting.

The operator and local mode write files for the default manifest. Each file is read once unchanged, and once without
each setting. Both must give the same result, or the reader must refuse the file: then it has no default. The options of
policies' constructors are checked in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from plumage.api.v1alpha1 import InferencePool
from plumage.batching import make_queue
from plumage.eviction.factory import make_policy as make_eviction
from plumage.routing import make_policy as make_routing
from plumage.settings.addresses import DirectoryAddress, EngineSockets
from plumage.settings.agent import agent_settings
from plumage.settings.agent_config import AgentConfig, AgentListen
from plumage.settings.plugin_config import PluginSettings
from plumage.settings.router import router_settings
from plumage.settings.router_config import AuthConfig, ListenConfig, RouterConfig
from plumage.settings.secrets import SecretFiles
from plumage.settings.simulator import simulator_settings
from plumage.settings.simulator_config import SimulatorConfig
from plumage.settings.vllm import plugin_settings
from plumage_bench.benches.defaults.manifests import put
from plumage_bench.benches.defaults.state import state_of

__all__ = ["differing", "second_copies"]

_PLAIN: Final[dict[str, Any]] = {
    "model": {"uri": "builtin://tiny-chat"},
    "engine": {"runtime": "Simulator"},
}
_CHOICES: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    *({"engine.feather.policy": policy} for policy in ("Bandit", "QLearning", "Heuristic")),
    {"engine.feather.policy": "Bandit", "engine.feather.bandit": {"forgetting": "SlidingWindow"}},
    {"engine.feather.policy": "Bandit", "engine.feather.bandit.form": "Paper"},
    {"engine.feather.policy": "QLearning", "engine.feather.qLearning.form": "Paper"},
    {"engine.eviction.hotness": {"form": "Paper"}},
    {"engine.hostMemory": {"capacity": "1Gi"}},
    {"router.policy": "LbgrPaper"},
)
"""Settings that choose something with its own settings. The choice itself is not a default, so it stays in the file."""

_SAID: Final = {
    "engine.feather.policy": "feather.policy",
    "engine.feather.bandit": "forgetting",
    "engine.feather.bandit.form": "feather.policy",
    "engine.feather.qLearning.form": "feather.policy",
    "engine.eviction.hotness": "eviction.policy",
    "engine.hostMemory": "hostBlocks",
    "router.policy": "policy.name",
}
_DERIVED: Final = ("model.cacheTokens",)
"""Settings without a field: the router's limit of a prompt comes from the size of the simulated cache."""

File = tuple[str, type[BaseModel], dict[str, Any]]


def second_copies() -> list[str]:
    """One line for each second copy."""
    found: dict[str, None] = {}
    for choice in _CHOICES:
        spec = _PLAIN
        for path, value in choice.items():
            spec = put(spec, path, value)
        first, second = (list(_files(_pool(spec), other)) for other in (False, True))
        for (name, reader, content), (_, _, given) in zip(first, second, strict=True):
            skip = {path for path, _ in _differences(content, given)} | _chosen(choice) | {*_DERIVED}
            found |= dict.fromkeys(f"{name} {path}" for path in differing(reader, content, skip))
        found |= dict.fromkeys(line for line in _options(first) if line.rpartition(" ")[2] not in _chosen(choice))
    return list(found)


def _chosen(choice: Mapping[str, Any]) -> set[str]:
    """The settings that make the choice."""
    return {_SAID[path] for path in choice}


def differing(reader: type[BaseModel], content: Mapping[str, Any], skip: Sequence[str] | set[str] = ()) -> list[str]:
    """The settings of a file, dotted, without which `reader` uses another value. skip: settings that are not defaults
    of the manifest."""
    whole = reader.model_validate(content)
    return [path for path in _paths(content) if path not in skip and _otherwise(reader, content, path, whole)]


def _otherwise(reader: type[BaseModel], content: Mapping[str, Any], path: str, whole: BaseModel) -> bool:
    less = deepcopy(dict(content))
    *way, last = path.split(".")
    part: Any = less
    for name in way:
        part = part[name]
    del part[last]
    try:
        return reader.model_validate(less) != whole
    except ValidationError:
        return False  # refused without the setting, so it has no default


def _paths(content: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The settings of a file. `_options` checks the options of policies."""
    for name, value in content.items():
        if isinstance(value, dict) and value and name not in ("options", "lbgr"):
            yield from _paths(value, f"{before}{name}.")
        elif name not in ("options", "lbgr"):
            yield f"{before}{name}"


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in one.items():
        if isinstance(value, dict) and isinstance(other.get(name), dict):
            yield from _differences(value, other[name], f"{before}{name}.")
        elif value != other.get(name):
            yield f"{before}{name}", value


def _pool(spec: Mapping[str, Any]) -> InferencePool:
    head = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "chat"}}
    return InferencePool.model_validate({**head, "spec": spec})


def _files(pool: InferencePool, other: bool) -> Iterator[File]:
    """The files of each process. other: with other paths, ports and names, which are arguments and not the
    manifest's."""
    mark = "-b" if other else "-a"
    sockets = EngineSockets(f"ipc:///events{mark}", f"ipc:///replay{mark}", f"/token{mark}", f"/key{mark}")
    host, port = ("::1", 2) if other else ("127.0.0.1", 1)
    folder, directory = f"/models{mark}", DirectoryAddress(f"redis://host{mark}")
    named = pool if not other else pool.model_copy(
        update={"metadata": pool.metadata.model_copy(update={"name": "other"})}
    )  # fmt: skip
    engine = simulator_settings(named, sockets, model_folder=folder, host=host, port=port, seed=1 if other else 0)
    yield "simulator", SimulatorConfig, engine.written()
    agent = agent_settings(
        named, sockets, model_folder=folder, engine_url=f"http://host{mark}", directory=directory,
        listen=AgentListen(host=host, port=port), members=Path(f"/peers{mark}"),
    )  # fmt: skip
    yield "agent", AgentConfig, {**agent.written(), "replica": f"chat{mark}"}
    router = router_settings(
        named, model_folder=folder, directory=directory, listen=ListenConfig(host=host, port=port),
        membership=Path(f"/members{mark}"), auth=AuthConfig(admin_key_file=Path(f"/admin{mark}")),
        secrets=SecretFiles.in_folder(f"/keys{mark}"),
    )  # fmt: skip
    yield "router", RouterConfig, router.written()
    yield "plugin", PluginSettings, plugin_settings(named, sockets.token, seed=1 if other else 0).written()


def _options(files: Sequence[File]) -> Iterator[str]:
    """Options of constructors that change the result if they are left out."""
    by_name = {name: content for name, _, content in files}
    for process in ("simulator", "plugin"):
        for part, make in (("feather", _queue), ("eviction", _eviction)):
            configured = by_name[process].get(part)
            if configured is not None:
                yield from _unlike(
                    f"{process} {configured['policy']}",
                    partial(make, configured["policy"]),
                    configured.get("options", {}),
                )
    policy = by_name["router"]["policy"]
    yield from _unlike(f"router {policy['name']}", partial(_routing, policy["name"]), policy["lbgr"])


def _queue(name: str, **options: Any) -> object:
    return make_queue(name, rng=random.Random(0), **options)


def _eviction(name: str, **options: Any) -> object:
    return make_eviction(name, capacity=64, rng=random.Random(0), **options)


def _routing(name: str, **options: Any) -> object:
    return make_routing(name, rng=random.Random(0), **options)


def _unlike(what: str, make: Callable[..., object], options: Mapping[str, Any]) -> Iterator[str]:
    whole = state_of(make(**options))
    for name in options:
        less = {other: value for other, value in options.items() if other != name}
        if state_of(make(**less)) != whole:
            yield f"{what}, option {name}"
