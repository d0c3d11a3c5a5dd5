"""Which settings of a process have an effect there: its code must use each of them by name.

`reading.py` shows that a field of a manifest changes a written file. This module shows that the file's reader does not
ignore what it reads. A field counts as used if an attribute of its name is loaded in one of these places:

- the package of the process;
- a method of the field's own model that the package calls; validators are not called;
- a class that gets the model, or all of its fields as arguments: `CONSUMERS` lists these. Parameters count there too.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any, Final, get_args

from plumage.hotness.cuckoo import CuckooFilter
from plumage.incluster.api import ApiServer
from plumage.incluster.config import ApiServerConfig
from plumage.settings.agent_config import AgentConfig
from plumage.settings.engine_policies import HostTierConfig, RecordConfig
from plumage.settings.plugin_config import PluginSettings
from plumage.settings.router_config import RouterConfig
from plumage.settings.simulator_config import SimulatorConfig
from plumage.version_skew import Settings
from plumage_engine.simulator.engine.host_link import HostLink

__all__ = ["PACKAGES", "unread_of_process", "unread_of_processes"]

PACKAGES: Final[Mapping[type[Settings], str]] = {
    RouterConfig: "plumage_router",
    AgentConfig: "plumage_engine.agent",
    SimulatorConfig: "plumage_engine.simulator",
    PluginSettings: "plumage_engine.vllm",
}
CONSUMERS: Final[Mapping[tuple[str, type[Settings]], type]] = {
    ("plumage_router", ApiServerConfig): ApiServer,
    ("plumage_engine.agent", ApiServerConfig): ApiServer,
    ("plumage_engine.simulator", HostTierConfig): HostLink,
    ("plumage_engine.simulator", RecordConfig): CuckooFilter,
    ("plumage_engine.vllm", RecordConfig): CuckooFilter,
}
"""By package and model."""
ELSEWHERE: Final[Mapping[tuple[str, type[Settings]], Collection[str]]] = {
    ("plumage_engine.simulator", HostTierConfig): ("promotion_bytes", "promotion_lookahead"),
}
"""Fields of a model that two processes share, and that one of them leaves out on purpose: they are vLLM's."""


def unread_of_processes() -> list[str]:
    """The settings of all processes that their process does not use."""
    return [place for model, package in PACKAGES.items() for place in unread_of_process(model, package)]


def unread_of_process(model: type[Settings], package: str) -> list[str]:
    """Those of one process; sections count too. model: of its settings; a test passes one with one more field."""
    used = _loaded_in(package)
    return [
        f"{model.__name__} {path}"
        for part, name, path in _fields(model)
        if name not in used | _used_by_consumer(part, package) | _used_by_methods(part, package)
        and name not in ELSEWHERE.get((package, part), ())
    ]


def _fields(model: type[Settings], before: str = "") -> Iterator[tuple[type[Settings], str, str]]:
    """The model that a field belongs to, its name, and its dotted path; a section before the fields in it."""
    for name, field in model.model_fields.items():
        yield model, name, before + name
        for part in _models(field.annotation):
            yield from _fields(part, f"{before}{name}.")


def _models(form: Any) -> Iterator[type[Settings]]:
    if isinstance(form, type) and issubclass(form, Settings):
        yield form
    for part in get_args(form):
        yield from _models(part)


@cache
def _loaded_in(package: str) -> frozenset[str]:
    """The names of attributes that the package's modules load."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    return frozenset(name for path in folder.rglob("*.py") for name in _loads(ast.parse(path.read_text())))


@cache
def _used_by_consumer(model: type[Settings], package: str) -> frozenset[str]:
    consumer = next((CONSUMERS[package, one] for one in model.__mro__ if (package, one) in CONSUMERS), None)
    if consumer is None:
        return frozenset()
    tree = ast.parse(dedent(inspect.getsource(consumer)))
    return frozenset(_loads(tree)) | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


@cache
def _used_by_methods(model: type[Settings], package: str) -> frozenset[str]:
    """The fields that methods and properties read, of those that the process or the model's consumer calls."""
    called = _loaded_in(package) | _used_by_consumer(model, package)
    methods = [
        node
        for base in model.__mro__
        if issubclass(base, Settings) and base is not Settings
        for node in ast.walk(ast.parse(dedent(inspect.getsource(base))))
        if isinstance(node, ast.FunctionDef) and node.name in called
    ]
    return frozenset(name for node in methods for name in _loads(node))


def _loads(tree: ast.AST) -> Iterator[str]:
    return (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
