"""Decides who may call which of the agent's routes.

The agent's own token opens every route. In a cluster the service accounts among the callers open the others by their
projected tokens. Accounts that may read figures only do not open prompts (0158).
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import SecretStr
from starlette.exceptions import HTTPException

from plumage.errors import CallerRefusedError
from plumage.settings.agent_config import AgentConfig
from plumage_engine.configuration import read_secret

__all__ = ["Access", "Audience", "Callers"]

Audience = Literal["callers", "peers", "own"]


class Callers(Protocol):
    """Knows a caller by its token (`plumage.incluster.callers`)."""

    async def check(self, authorization: str) -> str:
        """The caller's full name. CallerRefusedError for a token that names no caller."""
        ...


@dataclass(frozen=True, slots=True)
class Access:
    """token: the agent's own; None opens every route to everyone. callers: None outside of a cluster.
    figures_only: names of callers that may not read prompts."""

    token: SecretStr | None = None
    callers: Callers | None = None
    figures_only: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: AgentConfig) -> Access:
        """ConfigurationError for a token file that can't be read."""
        return cls(read_secret(config.token_file), _callers(config), frozenset(config.figures_only))

    async def check(self, authorization: str, audience: Audience) -> None:
        """HTTPException for a request that may not use the route."""
        if self.token is None:
            return
        expected = b"Bearer " + self.token.get_secret_value().encode()
        if not hmac.compare_digest(authorization.encode("latin-1"), expected):
            await self._check_caller(authorization, audience)

    async def _check_caller(self, authorization: str, audience: Audience) -> None:
        if self.callers is None or audience == "own":
            raise HTTPException(401, "this route needs the agent's bearer token")
        try:
            caller = await self.callers.check(authorization)
        except CallerRefusedError as error:
            raise HTTPException(error.status, str(error)) from error
        if audience == "peers" and caller in self.figures_only:
            raise HTTPException(403, f"{caller} may read figures here, and no prompts")


def _callers(config: AgentConfig) -> Callers | None:
    """None where the configuration names none: without callers the agent runs without the extra `kube`."""
    if not config.callers:
        return None
    from plumage.incluster import callers  # needs the extra `kube`
    from plumage.incluster.api import ApiServer

    return callers.Callers(ApiServer(config.api_server), config.callers)
