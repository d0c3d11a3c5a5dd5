"""Settings with an unknown policy end the server, and the error lists the known ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage_bench.vllm.engine import SCHEDULER, plugin_arguments
from plumage_bench.vllm.server import Server, ServerError

_WRONG: dict[str, Any] = {"feather": {"policy": "Bandid"}}
_RIGHT = ("Bandit", "QLearning", "Heuristic", "ChtOrder", "Fcfs")


_BY_FLAG = (f"--scheduler-cls={SCHEDULER}", f"--additional-config={json.dumps({'plumage': _WRONG})}")


@pytest.mark.parametrize(
    ("arguments", "environment", "where"),
    [
        ((), {"PLUMAGE_VLLM": json.dumps(_WRONG)}, "PLUMAGE_VLLM: "),
        (_BY_FLAG, {}, "ConfigurationError: --additional-config, plumage: "),
    ],
    ids=["environment", "flag"],
)
def test_invalid_policy_ends_server(
    start_server: Callable[..., Server],
    tmp_path: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    where: str,
) -> None:
    with pytest.raises(ServerError, match="vLLM ended with status") as raised:
        start_server(*arguments, environment=environment)
    (log,) = tmp_path.glob("*.log")
    lines = log.read_text().splitlines()
    shown = str(raised.value).splitlines()[1:]
    assert shown  # the end of the log
    assert set(shown) <= set(lines)
    said = [line for line in lines if where in line and "Bandid" in line]
    assert said, log.read_text()
    assert all(name in said[0] for name in _RIGHT)


def test_invalid_additional_config_is_refused(tiny_model: Path) -> None:
    """The scheduler is made as in the engine core, from vLLM's parsed options."""
    from vllm.engine.arg_utils import EngineArgs

    arguments = EngineArgs(model=str(tiny_model), enforce_eager=True, **plugin_arguments(_WRONG))
    config = arguments.create_engine_config()
    with pytest.raises(ConfigurationError, match="--additional-config, plumage: no batching policy") as raised:
        config.scheduler_config.get_scheduler_cls()(vllm_config=config)
    assert all(name in str(raised.value) for name in _RIGHT)


@pytest.mark.parametrize("given", [{"feather": {"policy": "Bandit"}}, {"plumge": {}}])
def test_misplaced_settings_are_refused(tiny_model: Path, given: dict[str, Any]) -> None:
    from vllm.engine.arg_utils import EngineArgs

    wrong = {**plugin_arguments({}), "additional_config": {**given, "gdn_prefill_backend": "auto"}}
    config = EngineArgs(model=str(tiny_model), enforce_eager=True, **wrong).create_engine_config()
    with pytest.raises(ConfigurationError, match=f"--additional-config: '{next(iter(given))}' is not read"):
        config.scheduler_config.get_scheduler_cls()(vllm_config=config)
