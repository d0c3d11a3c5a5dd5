"""A pool of real vLLM on one machine: the settings of its processes, and the message for a machine without vLLM."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plumage.api.v1alpha1 import InferencePool, load_pool
from plumage.errors import ManifestError
from plumage.models import BUILTIN
from plumage.settings.agent_config import AgentConfig
from plumage_cli.commands.up import app
from plumage_cli.errors import CliError
from plumage_cli.local.plan.paths import LocalPaths
from plumage_cli.local.plan.processes import plan_replica
from plumage_cli.local.plan.unused_fields import refuse_cluster_fields, without_local_effect
from plumage_cli.local.plan.vllm import VllmInterpreter, needs_weights
from plumage_cli.local.processes.vllm_interpreter import PYTHON, find_vllm
from plumage_engine.vllm.offload.disk_tier.options import DiskOptions, read_disk
from plumage_engine.vllm.settings import read_settings
from plumage_engine.vllm.tiny_model import SIZES, bytes_only, llama_config, tokenizer_config


def pool(
    engine: str = "{runtime: VLLM}", model: str = "{uri: 'builtin://tiny-llama'}", more: str = ""
) -> InferencePool:
    return load_pool(
        f"""
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {{name: chat}}
spec:
  model: {model}
  engine: {engine}
  {more}
""",
        "pool.yaml",
    )


def local_paths(**changes: Any) -> LocalPaths:
    vllm = VllmInterpreter("/venv/bin/python", **changes)
    return LocalPaths(Path("/pool"), Path("/models/tokenizer"), "unix:///pool/dir", Path("/models/weights"), vllm)


def plan(wanted: InferencePool, index: int = 1, **changes: Any) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """(flags with a value, environment, the whole command) of an engine."""
    settings = plan_replica(wanted, local_paths(**changes), index, 7001, 7002).engine.settings
    command = list(settings["command"])
    flags = dict(part.split("=", 1) for part in command if part.startswith("--") and "=" in part)
    return flags, dict(settings["environment"]), command


def test_command_follows_the_manifest() -> None:
    flags, _, command = plan(pool(model="{uri: 'builtin://tiny-llama', name: tiny, maxLength: 2048}"))
    assert command[:3] == ["/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert (flags["--model"], flags["--served-model-name"]) == ("/models/weights", "tiny")
    assert (flags["--host"], flags["--port"], flags["--max-model-len"]) == ("127.0.0.1", "7001", "2048")
    assert "--enable-prompt-tokens-details" in command
    assert not any("include-usage" in argument for argument in command), "the router asks for each stream's"
    assert int(flags["--shutdown-timeout"]) > 0


def test_engine_and_agent_agree_on_events_and_token() -> None:
    replica = plan_replica(pool(), local_paths(), 1, 7001, 7002)
    flags, environment, _ = plan(pool())
    agent = AgentConfig.model_validate(dict(replica.agent.settings))
    events = json.loads(flags["--kv-events-config"])
    assert events["enable_kv_cache_events"]
    assert (events["endpoint"], events["replay_endpoint"]) == (agent.events_endpoint, agent.replay_endpoint)
    settings = read_settings(None, environment)
    assert settings is not None
    assert settings.routes.admin_token_file == agent.engine_token_file
    assert environment["VLLM_PLUGINS"] == "plumage"
    assert agent.engine_url == replica.engine.url
    assert replica.engine.ready_seconds >= 600 < replica.agent.ready_seconds


def test_engine_traces_only_what_the_router_traces() -> None:
    flags, environment, _ = plan(pool(more="tracing: {endpoint: 'http://collector:4318/'}"))
    assert flags["--otlp-traces-endpoint"] == "http://collector:4318/v1/traces"
    assert environment["OTEL_TRACES_SAMPLER"] == "parentbased_always_off"
    assert environment["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert environment["OTEL_SERVICE_NAME"] == "chat-engine"
    flags, environment, _ = plan(pool())
    assert "--otlp-traces-endpoint" not in flags
    assert not any(name.startswith("OTEL_") for name in environment)


def test_policies_reach_the_plugin() -> None:
    feather, eviction = "{policy: QLearning, maxWaitSeconds: 7}", "{policy: Rlt}"
    engine = f"{{runtime: VLLM, feather: {feather}, eviction: {eviction}, batchLimit: Static}}"
    settings = read_settings(None, plan(pool(engine))[1])
    assert settings is not None
    assert settings.feather is not None
    assert (settings.feather.policy, settings.feather.max_wait_seconds) == ("QLearning", 7)
    assert settings.eviction is not None
    assert (settings.eviction.policy, settings.batch_limit, settings.seed) == ("Rlt", "Static", 1)


def test_policies_of_vllm_itself_configure_no_plugin() -> None:
    settings = read_settings(None, plan(pool("{runtime: VLLM, feather: {policy: Fcfs}, eviction: {policy: Lru}}"))[1])
    assert settings is not None
    assert settings.feather is settings.eviction is None


def test_host_memory_becomes_a_tier_of_that_size() -> None:
    engine = "{runtime: VLLM, hostMemory: {capacity: 2Gi, admission: Frequency, minFrequency: 3}}"
    flags, environment, _ = plan(pool(engine))
    tier = json.loads(flags["--kv-transfer-config"])
    assert tier["kv_connector_extra_config"]["cpu_bytes_to_use"] == 2 << 30
    settings = read_settings(None, environment)
    assert settings is not None
    assert (settings.host_tier.admission, settings.host_tier.min_frequency) == ("Frequency", 3)


def test_disk_tier_is_a_little_smaller_than_its_volume() -> None:
    flags, _, _ = plan(pool("{runtime: VLLM, hostMemory: {capacity: 2Gi, disk: {capacity: 50Gi, path: /mnt/kv}}}"))
    disk = read_disk(json.loads(flags["--kv-transfer-config"])["kv_connector_extra_config"])
    assert disk == DiskOptions(Path("/mnt/kv"), 49 << 30)


def test_arguments_and_variables_of_the_user_come_last() -> None:
    own = "args: ['--block-size=64', --no-enforce-eager], env: [{name: OMP_NUM_THREADS, value: '7'}]"
    engine = f"{{runtime: VLLM, {own}}}"
    _, environment, command = plan(pool(engine), threads=2)
    assert command[-2:] == ["--block-size=64", "--no-enforce-eager"]
    assert environment["OMP_NUM_THREADS"] == "7"


def test_cpu_engine_requests_no_more_than_a_cpu_has() -> None:
    flags, environment, command = plan(pool(), cpu=True, threads=3)
    assert float(flags["--gpu-memory-utilization"]) <= 0.4
    assert "--enforce-eager" in command
    assert (environment["OMP_NUM_THREADS"], environment["VLLM_CPU_OMP_THREADS_BIND"]) == ("3", "nobind")
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    flags, environment, command = plan(pool(), cpu=False)
    assert "--gpu-memory-utilization" not in flags
    assert "--enforce-eager" not in command
    assert "OMP_NUM_THREADS" not in environment


def test_adapters_are_loaded_from_their_folders() -> None:
    model = "{uri: 'builtin://tiny-llama', adapters: [{name: law, uri: 'file:///adapters/law%20book'}]}"
    _, _, command = plan(pool(model=model))
    assert command[command.index("--lora-modules") + 1] == "law=/adapters/law book"
    assert {"--max-loras=1", "--max-cpu-loras=1", "--max-lora-rank=16"} < set(command)


def test_adapters_share_slots_and_host_memory_keeps_all_of_them() -> None:
    six = ", ".join(f"{{name: law-{number}, uri: 'file:///adapters/{number}'}}" for number in range(6))
    model = f"{{uri: 'builtin://tiny-llama', adapterMaxRank: 20, adapters: [{six}]}}"
    _, _, command = plan(pool(model=model))
    assert {"--max-loras=4", "--max-cpu-loras=6", "--max-lora-rank=32"} < set(command)


def test_features_that_need_a_cluster_are_refused() -> None:
    wanted = pool(
        "{runtime: VLLM, env: [{name: X, valueFrom: {secretKeyRef: {name: s, key: k}}}]}",
        "{uri: 'builtin://tiny-llama', adapters: [{name: law, uri: 'hf://org/law'}]}",
    )
    with pytest.raises(ManifestError) as caught:
        refuse_cluster_fields(wanted, "pool.yaml")
    fields = [mistake.split(":")[0] for mistake in caught.value.mistakes]
    assert fields == ["spec.model.adapters", "spec.engine.env"]


def test_fields_that_vllm_uses_are_not_reported_as_unused() -> None:
    wanted = pool("{runtime: VLLM, hostMemory: {capacity: 1Gi}, env: [{name: X, value: y}], image: some}")
    assert without_local_effect(wanted) == ["spec.engine.image"]
    wanted = pool("{runtime: VLLM, hostMemory: {capacity: 1Gi, disk: {capacity: 1Gi, path: /kv, claimName: kv}}}")
    assert without_local_effect(wanted) == ["spec.engine.hostMemory.disk.claimName"]


def test_weights_are_made_for_the_built_in_model_only() -> None:
    assert needs_weights(pool())
    assert not needs_weights(pool(model="{uri: 'file:///models/qwen'}"))
    assert not needs_weights(pool("{runtime: Simulator}"))


def test_folder_of_the_built_in_model_equals_the_written_one() -> None:
    """Routers and agents read the one, vLLM the other. Their fingerprints must be equal."""
    folder, made = BUILTIN["tiny-llama"], bytes_only()
    assert (folder / "tokenizer.json").read_text() == made.to_str(pretty=False)
    assert json.loads((folder / "tokenizer_config.json").read_text()) == tokenizer_config()
    assert json.loads((folder / "config.json").read_text()) == llama_config(made, SIZES["tiny"], tied=False)
    template = "chat_template.jinja"
    assert (folder / template).read_text() == (BUILTIN["tiny-chat"] / template).read_text()


def script(folder: Path, code: str) -> Path:
    """An interpreter that only does this."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_option_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = script(tmp_path, "exit 0")
    found = find_vllm(good, {PYTHON: "/nowhere"}, replicas=1)
    assert (found.python, found.threads) == (str(good), len(os.sched_getaffinity(0)))
    assert find_vllm(None, {PYTHON: str(good)}, replicas=1000).threads == 1


def test_neighbouring_environment_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv-vllm" / "bin").mkdir(parents=True)
    good = script(tmp_path / ".venv-vllm" / "bin", "exit 0")
    monkeypatch.chdir(tmp_path)
    assert find_vllm(None, {}, replicas=1).python == str(good)


@pytest.mark.parametrize("python", ["missing", "without"])
def test_message_without_vllm_names_how_to_get_it(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = script(tmp_path, "exit 1") if python == "without" else tmp_path / "nowhere"
    with pytest.raises(CliError, match="make setup-vllm") as caught:
        find_vllm(chosen, {}, replicas=1)
    assert str(chosen) in str(caught.value)


@pytest.mark.parametrize("arguments", [["up"], ["up", "pool.yaml", "--model", "tiny-llama"]])
def test_manifest_and_model_exclude_each_other(arguments: list[str]) -> None:
    ended = CliRunner().invoke(app, arguments[1:])
    assert isinstance(ended.exception, CliError)
    assert "--model NAME_OR_FOLDER" in str(ended.exception)
