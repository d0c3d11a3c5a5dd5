"""The adapters that the simulator serves, and the route by which the agent loads and unloads them.

A simulated adapter has no files, so loading takes no time. Sources that vLLM refuses are refused here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plumage_engine.adapters import AdapterError, AdapterLoader, AdapterServer, parse_wanted
from plumage_engine.simulator.http.protocol import ApiError, fleet_body

__all__ = ["AdapterRoute", "SimulatedAdapters"]


class SimulatedAdapters(AdapterServer):
    """names: of the adapters that are served from the start."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._sources = dict.fromkeys(names, "")

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def sources(self) -> Mapping[str, str]:
        return dict(self._sources)

    async def fetch(self, source: str) -> str:
        if "://" in source:
            raise AdapterError("vLLM loads adapters from folders and repositories of the hub only")
        return source

    async def load(self, name: str, source: str, folder: str) -> None:
        self._sources[name] = source

    async def unload(self, name: str) -> None:
        self._sources.pop(name, None)


class AdapterRoute:
    """`POST /v1/plumage/adapters`."""

    def __init__(self, adapters: SimulatedAdapters) -> None:
        self._loader = AdapterLoader(adapters)

    async def want(self, request: Request) -> Response:
        try:
            wanted = parse_wanted(await fleet_body(request))
        except ValueError as error:
            raise ApiError(400, str(error), param="adapters") from None
        return JSONResponse(await self._loader.want(wanted))
