"""The plugin's settings: `--additional-config '{"plumage": {...}}'` or the environment variable PLUMAGE_VLLM.

Both hold one JSON object with the fields of `PluginSettings`. The command line replaces the environment variable
completely. Without either the plugin does nothing. `{}` switches on each field's default.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from plumage.batching import make_queue, queue_options
from plumage.errors import ConfigurationError
from plumage.eviction import make_policy, policy_options
from plumage.hotness.priority_formula import parse_formula
from plumage.options import refuse_given
from plumage.settings.engine_policies import EvictionConfig, FeatherConfig, HostTierConfig, RecordConfig, refuse_code
from plumage.settings.plugin_config import PluginSettings, RoutesConfig
from plumage.version_skew import MARK, Settings

__all__ = [
    "ENVIRONMENT",
    "SECTION",
    "check_keys",
    "read_feather",
    "read_settings",
]

SECTION = "plumage"
ENVIRONMENT = "PLUMAGE_VLLM"

_log = logging.getLogger("vllm.plumage")


def read_settings(additional_config: object, environment: Mapping[str, str]) -> PluginSettings | None:
    """The settings, or None where the plugin is not configured. ConfigurationError names every mistake.

    additional_config: vLLM's, a mapping from JSON, or any object that another plugin put there.
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


def read_feather(body: bytes) -> FeatherConfig | None:
    """The value of `feather` alone, as a running engine receives it. ConfigurationError names every mistake."""
    try:
        given = json.loads(body)
        refuse_code(given)
        mark = {name: given.pop(name) for name in MARK if isinstance(given, dict) and name in given}
        settings = _validated({"feather": given, "eviction": None, **mark}, SECTION)
        _try_policies(settings, SECTION)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the body must be the JSON value of `feather` in the settings: {error}") from error
    return settings.feather


def check_keys(additional_config: object) -> None:
    """Check that no setting of the plugin stands outside of "plumage" in vLLM's `--additional-config`.

    ConfigurationError for a key that only the plugin has, or that resembles "plumage". A key that other plugins may
    have as well is logged.
    """
    if not isinstance(additional_config, Mapping):
        return
    for key in map(str, additional_config):
        if key in _OWN:
            raise ConfigurationError(f"--additional-config: {_beneath(key)}")
        if key != SECTION and get_close_matches(key.lower(), [SECTION], cutoff=_ALIKE):
            raise ConfigurationError(f'--additional-config: {key!r} is not read; the plugin reads "{SECTION}"')
        if key in _COMMON:
            _log.warning("plumage: --additional-config: %s; it is left to other plugins", _beneath(key))


def _beneath(key: str) -> str:
    return f'{key!r} is not read there; write {{"{SECTION}": {{"{key}": …}}}}'


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
    """The valid names, where the mistake is an unknown name."""
    if item["type"] != "extra_forbidden":
        return ""
    section: type[Settings] = PluginSettings
    for part in item["loc"][:-1]:
        section = _SECTIONS.get(str(part), section)
    names = (field.alias or name for name, field in section.model_fields.items())
    return f"; there are: {', '.join(names)}"


def _try_policies(settings: PluginSettings, where: str) -> None:
    """Make each policy once, so that a wrong name or option fails before vLLM loads a model."""
    try:
        if settings.feather is not None:
            _try_queue(settings.feather)
        if settings.eviction is not None:
            _try_eviction(settings.eviction)
        parse_formula(settings.host_tier.priority)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _try_queue(config: FeatherConfig) -> None:
    what, policy, options = f"batching policy {config.policy}", config.policy, config.options
    if "max_wait" in options:
        raise ConfigurationError(f"{what} has no option max_wait; set feather.maxWaitSeconds")
    refuse_given(what, options, ("policy", "rng"), queue_options(policy))
    _try(what, lambda: make_queue(policy, rng=random.Random(0), **options))


def _try_eviction(config: EvictionConfig) -> None:
    what, policy, options = f"eviction policy {config.policy}", config.policy, config.options
    refuse_given(what, options, ("name", "capacity", "rng"), policy_options(policy))
    _try(what, lambda: make_policy(policy, capacity=1024, rng=random.Random(0), **options))


def _try(what: str, make: Callable[[], object]) -> None:
    try:
        make()
    except (TypeError, ValueError, ArithmeticError) as error:  # the type is right, the value is not
        raise ConfigurationError(f"{what}: an option can't be used: {error}") from error


_SECTIONS: Mapping[str, type[Settings]] = {
    "feather": FeatherConfig,
    "eviction": EvictionConfig,
    "routes": RoutesConfig,
    "hostTier": HostTierConfig,
    "host_tier": HostTierConfig,
    "record": RecordConfig,
}
_OWN = ("feather", "hostTier", "host_tier", "batchLimit", "batch_limit")
_COMMON = ("eviction", "routes", "seed")
_ALIKE = 0.8  # of difflib: two letters of seven swapped, one missing or one too many
