"""Plumage's contender (*ours*), made from an InferencePool manifest by the code of the operator and of local mode.

A benchmark lists the fields that its experiment changes, by their path under `spec`. All others are as in a pool:

    OURS = Ours({"engine.simulator.cacheBlocks": 1024, "engine.feather.policy": "Fcfs"})
    engine = OURS.engine()                      # EngineSettings of a simulated engine
    engine = OURS.engine(device=make_device())  # on a device that no manifest has
    policy = OURS.routing_policy(rng)           # the router's policy with the manifest's options
    plugin = OURS.plugin()                      # the settings of vLLM's plugin, as in PLUMAGE_VLLM
    data |= {"ours": OURS.listed()}             # of the report: every setting that is not the default

A field that is not listed has its default. `plumage bench defaults` counts the exceptions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plumage.api.v1alpha1 import InferencePool, parse_pool
from plumage.routing import RoutingPolicy, make_policy
from plumage.settings.addresses import DirectoryAddress, EngineSockets
from plumage.settings.router import router_settings
from plumage.settings.router_config import AuthConfig, ListenConfig
from plumage.settings.simulator import simulator_settings
from plumage.settings.vllm import plugin_settings
from plumage_engine.simulator.engine.device import Device
from plumage_engine.simulator.engine.settings import EngineSettings, engine_settings

__all__ = ["Ours"]

_SOCKETS = EngineSockets(
    "ipc:///run/plumage/events", "ipc:///run/plumage/replay", "/run/plumage/token", "/run/plumage/key"
)
_FOLDER = "builtin://tiny-chat"


@dataclass(frozen=True)
class Ours:
    """A pool with the changes of an experiment. overrides: manifest path under spec → value, in the manifest's units.
    runtime: of `engine.runtime`. ManifestError if a manifest could not have these values."""

    overrides: Mapping[str, Any] = field(default_factory=dict)
    runtime: str = "Simulator"

    def pool(self) -> InferencePool:
        """The manifest."""
        uri = "builtin://tiny-chat" if self.runtime == "Simulator" else "builtin://tiny-llama"
        spec: dict[str, Any] = {"model": {"uri": uri}, "engine": {"runtime": self.runtime}}
        for path, value in self.overrides.items():
            *way, last = path.split(".")
            part = spec
            for name in way:
                part = part.setdefault(name, {})
            part[last] = value
        head = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "ours"}}
        return parse_pool({**head, "spec": spec}, "a benchmark's pool")

    def listed(self) -> dict[str, Any]:
        """The fields that differ from the default manifest, for the report's JSON."""
        return {"runtime": self.runtime, "overrides": dict(self.overrides)}

    def engine(self, device: Device | None = None, **lab: Any) -> EngineSettings:
        """A simulated engine. device: one that no manifest has, instead of the preset's. lab: settings that no manifest
        has, by the names of EngineSettings (report_tokens, chunk_blocks)."""
        settings = simulator_settings(self.pool(), _SOCKETS, model_folder=_FOLDER, host="127.0.0.1", port=0, seed=0)
        made = engine_settings(settings)
        return replace(made, **{"report_tokens": False, **lab, **({} if device is None else {"device": device})})

    def plugin(self) -> dict[str, Any]:
        """The settings of vLLM's plugin, without the file of the token, which only the pods of a pool have."""
        settings = plugin_settings(self.pool(), _SOCKETS.token, seed=0)
        return settings.written(without=("routes",))

    def routing(self) -> tuple[str, dict[str, Any]]:
        """The short name of the router's policy, and the options for its constructor."""
        policy = self.router(_FOLDER, "", 0)["policy"]
        return policy["name"], dict(policy["lbgr"])

    def router(self, model_folder: str, directory_url: str | None, port: int, **own: Any) -> dict[str, Any]:
        """The configuration file of a router process on this machine. own: fields of its identity and addresses (pool,
        model, membershipFile, auth, seed), instead of the manifest's."""
        settings = router_settings(
            self.pool(),
            model_folder=model_folder,
            directory=DirectoryAddress(directory_url or ""),
            listen=ListenConfig(host="127.0.0.1", port=port),
            membership=Path("membership.json"),
            auth=AuthConfig(),
            secrets=None,
        )
        return {**settings.written(without=("membership_file",)), "directoryUrl": directory_url, **own}

    def routing_policy(self, rng: random.Random, **lab: Any) -> RoutingPolicy:
        """The policy as a router makes it. lab: options that no manifest has."""
        name, options = self.routing()
        return make_policy(name, rng=rng, **{**options, **lab})
