"""HTTP routes for the learned table of the engine's stop policy, and for the batching policy.

The agent reads the table, and offers the merged table of other engines to a new one. The policy may change while the
engine runs. The fingerprint stands for what a table depends on: model, device, and how batches are formed. Invalid rows
refuse the whole table.
"""

from __future__ import annotations

import secrets

import msgspec
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from xxhash import xxh3_64_hexdigest

from plumage.batching.stop.shared import LearnedTable, SharesTable, checked
from plumage.errors import ConfigurationError
from plumage.settings.engine_policies import FeatherConfig, refuse_code
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.simulator.engine.settings import engine_settings
from plumage_engine.simulator.engine.sim_engine import SimEngine
from plumage_engine.simulator.http.protocol import ApiError, fleet_body

__all__ = ["Tables", "fingerprint"]


def fingerprint(config: SimulatorConfig) -> str:
    """16 hexadecimal digits: equal for engines whose tables mean the same."""
    parts = config.model_dump(
        mode="json",
        include={"model", "device", "feather", "block_size", "max_num_seqs", "max_batched_tokens", "batch_limit"},
    )
    return xxh3_64_hexdigest(msgspec.json.encode(parts, order="sorted"))


class Tables:
    """The handlers."""

    def __init__(self, engine: SimEngine, config: SimulatorConfig) -> None:
        self._engine = engine
        self._use(config)

    def _use(self, config: SimulatorConfig) -> None:
        """Use the engine's present policy. Its table is a new one, so it counts as a new start of the engine."""
        self._config = config
        policy = getattr(self._engine.queue, "policy", None)
        self._policy = policy if isinstance(policy, SharesTable) else None
        self._name = config.feather.policy
        self._fingerprint = fingerprint(config)
        self._life = secrets.token_hex(8)

    async def read(self, request: Request) -> Response:
        table = LearnedTable(self._fingerprint, self._name, list(self._learner().rows()), self._life)
        return Response(msgspec.json.encode(table), media_type="application/json")

    async def learn(self, request: Request) -> Response:
        learner = self._learner()
        try:
            table = msgspec.json.decode(await fleet_body(request), type=LearnedTable)
            rows = checked(table.rows)
        except (msgspec.DecodeError, ConfigurationError) as error:
            raise ApiError(400, f"the body must be a learned table: {error}", param="rows") from None
        if (table.fingerprint, table.policy) != (self._fingerprint, self._name):
            raise ApiError(409, "the table was learned by another model, device or configuration", param="fingerprint")
        learner.merge(rows)
        return Response(status_code=204)

    async def feather(self, request: Request) -> Response:
        """Change the batching policy. The body has the form of the configuration's `feather`."""
        try:
            settings = from_json(await fleet_body(request))
            refuse_code(settings)
            feather = FeatherConfig.parse(settings, "feather")
            config = self._config.model_copy(update={"feather": feather})
            if config != self._config:
                self._engine.change_policy(engine_settings(config))
                self._use(config)
        except (ValueError, ConfigurationError) as error:
            raise ApiError(400, f"the body must be what the configuration has as `feather`: {error}") from None
        return Response(status_code=204)

    def _learner(self) -> SharesTable:
        if self._policy is None:
            raise ApiError(404, f"the queue {self._name} shares nothing", kind="NotFoundError")
        return self._policy
