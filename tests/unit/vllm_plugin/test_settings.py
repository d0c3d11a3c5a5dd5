"""The plugin's settings: their sources, and the errors for wrong ones."""

from __future__ import annotations

import json

import pytest

from plumage import defaults
from plumage.errors import ConfigurationError
from plumage.settings.plugin_config import PluginSettings
from plumage_bench.baselines.batching import path as queue
from plumage_bench.baselines.eviction import path
from plumage_engine.vllm.settings import ENVIRONMENT, check_keys, read_feather, read_settings


def test_plugin_without_settings_is_not_configured() -> None:
    assert read_settings({}, {}) is None
    assert read_settings(None, {ENVIRONMENT: " "}) is None
    assert read_settings({"another": 1}, {}) is None


@pytest.mark.parametrize(("config", "environment"), [({"plumage": {}}, {}), ({}, {ENVIRONMENT: "{}"})])
def test_empty_object_enables_the_defaults(config: object, environment: dict[str, str]) -> None:
    settings = read_settings(config, environment)
    assert settings == PluginSettings()
    assert settings is not None
    assert settings.feather is not None
    assert settings.eviction is not None
    assert (settings.feather.policy, settings.eviction.policy) == (defaults.FEATHER_POLICY, "Hotness")
    assert not settings.feather.order_batch


def test_command_line_wins_over_the_environment() -> None:
    settings = read_settings({"plumage": {"feather": None}}, {ENVIRONMENT: '{"eviction": null}'})
    assert settings is not None
    assert settings.feather is None
    assert settings.eviction is not None


@pytest.mark.parametrize(
    ("given", "phrases"),
    [
        ({"feather": {"policy": "Bandid"}}, ["Bandid", "Bandit", "QLearning", "ChtOrder", "Fcfs"]),
        ({"eviction": {"policy": "Hottest"}}, ["Hottest", "Hotness", "Rlt", "Lru"]),
        ({"feather": {"policy": "Bandit", "options": {"exploraton": 1}}}, ["exploraton", "exploration"]),
        ({"feater": {}}, ["feater", "there are: feather, eviction, hostTier, batchLimit, seed"]),
        ({"feather": {"chunkToken": 1}}, ["feather.chunkToken", "chunkTokens"]),
        ({"hostTier": {"minFrequenci": 1}}, ["hostTier.minFrequenci", "minFrequency"]),
        ({"batchLimit": "Dynamic"}, ["batchLimit", "Adaptive", "Static"]),
        ({"feather": {"chunkTokens": 0}, "seed": "x"}, ["feather.chunkTokens", "seed"]),
        (
            {"hostTier": {"record": {"depthBit": 1}}},
            ["hostTier.record.depthBit", "there are: fingerprintBits", "depthBits"],
        ),
        ({"hostTier": {"priority": "nonsense"}}, ["nonsense", "frequency"]),
        ({"feather": {"options": {"max_wait": 5}}}, ["ChtOrder", "no option max_wait", "feather.maxWaitSeconds"]),
        (
            {"feather": {"policy": "Bandit", "options": {"rng": 1}}},
            ["Bandit", "no option rng", "exploration", "credit", "order"],
        ),
        ({"feather": {"policy": queue("Lpm"), "options": {"policy": "x"}}}, ["Lpm", "no option policy", "fcfs_above"]),
        ({"feather": {"policy": queue("Radix"), "options": {"rng": 1}}}, ["Radix", "no option rng", "stop"]),
        (
            {"feather": {"policy": queue("Radix"), "options": {"stop": "Fcfs"}}},
            ["named 'Fcfs'", "Heuristic"],
        ),
        (
            {"feather": {"policy": queue("Dynamic"), "options": {"smallest": 10**400}}},
            ["an option can't be used"],
        ),
        ({"eviction": {"policy": "HotnessPaper", "options": {"clock_bits": -1}}}, ["HotnessPaper: an option can't"]),
        ({"feather": {"policy": "Bandid", "options": {"order": {}}}}, ["Bandid", "Bandit"]),
        ({"eviction": {"options": {"capacity": 3}}}, ["Hotness", "no option capacity", "weights", "memory"]),
        ({"eviction": {"policy": path("Ttl"), "options": {"name": "x"}}}, ["Ttl", "no option name", "ttl"]),
        ("on", ["object"]),
    ],
)
def test_mistake_is_reported_with_the_valid_choice(given: object, phrases: list[str]) -> None:
    for config, environment in (({"plumage": given}, {}), ({}, {ENVIRONMENT: json.dumps(given)})):
        with pytest.raises(ConfigurationError) as raised:
            read_settings(config, environment)
        assert all(phrase in str(raised.value) for phrase in phrases), str(raised.value)


def test_invalid_json_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="PLUMAGE_VLLM must hold a JSON object"):
        read_settings(None, {ENVIRONMENT: "feather"})


def test_too_deeply_nested_text_is_reported_as_invalid_json() -> None:
    with pytest.raises(ConfigurationError, match="PLUMAGE_VLLM must hold a JSON object"):
        read_settings(None, {ENVIRONMENT: "[" * 100_000})


def test_batching_policy_is_read_alone() -> None:
    made = read_feather(b'{"policy": "Heuristic", "chunkTokens": 128}')
    assert made is not None
    assert (made.policy, made.chunk_tokens, made.order_batch) == ("Heuristic", 128, False)
    assert read_feather(b"null") is None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"{", "JSON"),
        (b"[]", "feather"),
        (b'{"policy": "Bandid"}', "Bandid"),
        (b'{"chunkTokens": 0}', "chunkTokens"),
        (b'{"options": {"max_wait": 5}}', "maxWaitSeconds"),
        (b'{"policy": "Bandit", "options": {"rng": 1}}', "exploration"),
        (b"[" * 100_000, "JSON"),
        (b'{"options": {"order": ' + b"[" * 900 + b"]" * 900 + b"}}", "order|JSON"),
        (b'{"policy": "plumage.batching.stop:Always"}', "a request can't name code to import"),
        (b"1" * 5000, "JSON"),
        (b"\xff", "JSON"),
    ],
)
def test_wrong_batching_policy_is_reported(body: bytes, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        read_feather(body)


@pytest.mark.parametrize("key", ["feather", "hostTier", "host_tier", "batchLimit", "plumge", "Plumage"])
def test_own_setting_in_another_place_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f'{key}.*"plumage"'):
        check_keys({key: {}, "another": 1})
    with pytest.raises(ConfigurationError, match=key):
        check_keys({"plumage": {}, key: {}})


@pytest.mark.parametrize("given", [{}, {"plumage": {}}, {"plum": 1, "virtualGpu": {}, "gdn": "x"}, object()])
def test_settings_of_other_plugins_are_ignored(given: object, caplog: pytest.LogCaptureFixture) -> None:
    check_keys(given)
    assert not caplog.records


def test_ambiguous_name_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    check_keys({"eviction": {}, "plumage": {}})
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert '{"plumage": {"eviction": …}}' in record.getMessage()
