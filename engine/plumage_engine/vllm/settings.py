"""What the plugin is told, by `--additional-config '{"plumage": {...}}'` or by the environment variable PLUMAGE_VLLM.

Both hold one JSON object with the fields of `PluginSettings`; where both are given the command line's is taken, whole.
Without either the plugin does nothing. `{}` switches on what each field's default says.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from plumage.batching import make_queue, queue_options
from plumage.defaults import BATCH_LIMIT, SEED
from plumage.errors import ConfigurationError
from plumage.eviction import make_policy, policy_options
from plumage.hotness.formula_parser import parse_formula
from plumage.options import refuse_given
from plumage.version_skew import MARK
from plumage_engine.configuration import Section
from plumage_engine.policies import EvictionConfig, FeatherConfig, HostTierConfig, RecordConfig, refuse_code

__all__ = [
    "ENVIRONMENT",
    "SECTION",
    "PluginEviction",
    "PluginFeather",
    "PluginFleet",
    "PluginSettings",
    "check_keys",
    "read_feather",
    "read_settings",
]

SECTION = "plumage"
ENVIRONMENT = "PLUMAGE_VLLM"

_log = logging.getLogger("vllm.plumage")


class PluginFeather(FeatherConfig):
    """FEATHER's queue in vLLM. chunk_tokens is rounded to whole blocks, at least one. order_batch sorts the running
    batch inside the worker."""


class PluginEviction(EvictionConfig):
    """The order of eviction in vLLM's block pool."""


class PluginFleet(Section):
    """The routes under /v1/plumage. admin_token_file: their bearer token's; without one only callers on this machine
    are served. record_blocks: cached blocks that a snapshot can tell of (about 550 bytes each)."""

    admin_token_file: Path | None = None
    record_blocks: int = Field(500_000, ge=1, le=50_000_000)


class PluginSettings(Section):
    """feather: None leaves vLLM's own queue; eviction: None its own order, LRU. host_tier: how the offloading spec
    admits and promotes; the tier itself is switched on by `--kv-transfer-config`. batch_limit: "Adaptive" lets fewer
    requests run while preemptions show pressure. fleet: the routes that agents call."""

    feather: PluginFeather | None = PluginFeather()
    eviction: PluginEviction | None = PluginEviction()
    host_tier: HostTierConfig = HostTierConfig()
    batch_limit: Literal["Adaptive", "Static"] = BATCH_LIMIT
    seed: int = SEED
    fleet: PluginFleet = PluginFleet()


def read_settings(additional_config: object, environment: Mapping[str, str]) -> PluginSettings | None:
    """The settings, or None where the plugin is not configured. ConfigurationError names every mistake.

    additional_config: vLLM's, a mapping from JSON, or whatever object another plugin put there.
    """
    given = additional_config.get(SECTION) if isinstance(additional_config, Mapping) else None
    where = f"--additional-config, {SECTION}"
    if given is None:
        text, where = environment.get(ENVIRONMENT), ENVIRONMENT
        if text is None or not text.strip():
            return None
        given = _parsed(text)
    settings = _validated(given, where)
    _try_policies(settings, where)
    return settings


def read_feather(body: bytes) -> PluginFeather | None:
    """The value of `feather` alone, as an engine that runs is told another. ConfigurationError names every mistake."""
    try:
        told = json.loads(body)
        refuse_code(told)
        mark = {name: told.pop(name) for name in MARK if isinstance(told, dict) and name in told}
        settings = _validated({"feather": told, "eviction": None, **mark}, SECTION)
        _try_policies(settings, SECTION)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the body must be JSON, what the settings have as `feather`: {error}") from error
    return settings.feather


def check_keys(additional_config: object) -> None:
    """That nothing in vLLM's `--additional-config` was meant for the plugin and is not under "plumage". Other keys are
    other plugins'. ConfigurationError for one that only the plugin has, or that looks like "plumage"; for one whose
    name others may have as well there is a line in the log."""
    if not isinstance(additional_config, Mapping):
        return
    for key in map(str, additional_config):
        if key in _OWN:
            raise ConfigurationError(f"--additional-config: {_beneath(key)}")
        if key != SECTION and get_close_matches(key.lower(), [SECTION], cutoff=_ALIKE):
            raise ConfigurationError(f'--additional-config: {key!r} is not read; "{SECTION}" is what the plugin reads')
        if key in _COMMON:
            _log.warning("plumage: --additional-config: %s; as it stands it is left to other plugins", _beneath(key))


def _beneath(key: str) -> str:
    return f'{key!r} is not read where it stands; write {{"{SECTION}": {{"{key}": …}}}}'


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{ENVIRONMENT} must hold a JSON object, such as {{}}: {error}") from error


def _validated(given: object, where: str) -> PluginSettings:
    try:
        return PluginSettings.parse(given, where)
    except ValidationError as error:
        lines = [f"  - {_path(item)}: {item['msg']}{_allowed(item)}" for item in error.errors()]
        raise ConfigurationError(f"{where}:\n" + "\n".join(lines)) from error


def _path(item: Any) -> str:
    return ".".join(map(str, item["loc"])) or "object"


def _allowed(item: Any) -> str:
    """The names that would have been right, where the mistake is an unknown one."""
    if item["type"] != "extra_forbidden":
        return ""
    section: type[Section] = PluginSettings
    for part in item["loc"][:-1]:
        section = _SECTIONS.get(str(part), section)
    names = (field.alias or name for name, field in section.model_fields.items())
    return f"; there are: {', '.join(names)}"


def _try_policies(settings: PluginSettings, where: str) -> None:
    """Make each policy once, so that a wrong name or option is told before vLLM loads a model."""
    try:
        if settings.feather is not None:
            _try_queue(settings.feather)
        if settings.eviction is not None:
            _try_eviction(settings.eviction)
        parse_formula(settings.host_tier.priority)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _try_queue(config: PluginFeather) -> None:
    what, policy, options = f"batching policy {config.policy}", config.policy, config.options
    if "max_wait" in options:
        raise ConfigurationError(f"{what} has no option max_wait; say it in feather.maxWaitSeconds")
    refuse_given(what, options, ("policy", "rng"), queue_options(policy))
    _try(what, lambda: make_queue(policy, rng=random.Random(0), **options))


def _try_eviction(config: PluginEviction) -> None:
    what, policy, options = f"eviction policy {config.policy}", config.policy, config.options
    refuse_given(what, options, ("name", "capacity", "rng"), policy_options(policy))
    _try(what, lambda: make_policy(policy, capacity=1024, rng=random.Random(0), **options))


def _try(what: str, make: Callable[[], object]) -> None:
    try:
        make()
    except (TypeError, ValueError, ArithmeticError) as error:  # of its right type, and yet no value for it
        raise ConfigurationError(f"{what}: an option can't be used: {error}") from error


_SECTIONS: Mapping[str, type[Section]] = {
    "feather": PluginFeather,
    "eviction": PluginEviction,
    "fleet": PluginFleet,
    "hostTier": HostTierConfig,
    "host_tier": HostTierConfig,
    "record": RecordConfig,
}
_OWN = ("feather", "hostTier", "host_tier", "batchLimit", "batch_limit")
_COMMON = ("eviction", "fleet", "seed")
_ALIKE = 0.8  # of difflib: two letters of seven swapped, one missing or one too many
