"""An engine serves the adapters that its agent asks for: it loads one at a time, and tries failed ones again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from plumage_engine.adapters import AGAIN, AdapterError, AdapterLoader, AdapterServer, parse_wanted


class Server(AdapterServer):
    """go: lets downloads end. wrong: sources that fail, each with the error. did: what was done, in order."""

    def __init__(self, served: dict[str, str] | None = None) -> None:
        self.served = served or {}
        self.go = asyncio.Event()
        self.wrong: dict[str, Exception] = {}
        self.did: list[str] = []

    def sources(self) -> Mapping[str, str]:
        return self.served

    async def fetch(self, source: str) -> str:
        self.did.append(f"fetch {source}")
        await self.go.wait()
        if source in self.wrong:
            raise self.wrong[source]
        return f"/cache{source}"

    async def load(self, name: str, source: str, folder: str) -> None:
        self.did.append(f"load {name} {folder}")
        self.served[name] = source

    async def unload(self, name: str) -> None:
        self.did.append(f"unload {name}")
        del self.served[name]


async def ended(loader: AdapterLoader, wanted: dict[str, str]) -> dict[str, Any]:
    """The answer once nothing is loading."""
    for _ in range(100):
        answer = await loader.want(wanted)
        if all(one["state"] != "Loading" for one in answer["adapters"]):
            return answer
        await asyncio.sleep(0)
    raise AssertionError(answer)


async def test_answer_does_not_wait_for_the_download() -> None:
    server = Server()
    loader = AdapterLoader(server)
    answer = await loader.want({"sql": "/sql"})
    assert answer == {"adapters": [{"name": "sql", "state": "Loading", "message": ""}], "served": []}
    await asyncio.sleep(0)
    await loader.want({"sql": "/sql"})
    server.go.set()
    answer = await ended(loader, {"sql": "/sql"})
    assert answer == {"adapters": [{"name": "sql", "state": "Loaded", "message": ""}], "served": ["sql"]}
    assert server.did == ["fetch /sql", "load sql /cache/sql"]


async def test_other_adapters_are_unloaded() -> None:
    server = Server({"law": "/law", "flags": ""})
    loader = AdapterLoader(server)
    assert (await loader.want({"flags": "/flags"}))["served"] == ["flags"]
    assert server.did == ["unload law"], "where an engine got an adapter from its flags, the name says enough"


async def test_old_source_is_served_until_the_new_one_is_there() -> None:
    server = Server({"sql": "/old"})
    loader = AdapterLoader(server)
    answer = await loader.want({"sql": "/new"})
    assert (answer["adapters"][0]["state"], answer["served"]) == ("Loading", ["sql"])
    server.wrong["/new"] = AdapterError("no such folder")
    server.go.set()
    answer = await ended(loader, {"sql": "/new"})
    assert answer["adapters"] == [{"name": "sql", "state": "Failed", "message": "no such folder"}]
    assert server.served == {"sql": "/old"}


async def test_failed_adapter_is_tried_again_later_or_with_another_source() -> None:
    now, server = [0.0], Server()
    server.go.set()
    server.wrong = {"/sql": AdapterError("the hub\nis away"), "/law": RuntimeError("a mistake")}
    loader = AdapterLoader(server, lambda: now[0])
    wanted = {"sql": "/sql", "law": "/law"}
    answer = await ended(loader, wanted)
    assert [one["message"] for one in answer["adapters"]] == ["the hub is away", "RuntimeError: a mistake"]
    await ended(loader, wanted)
    assert server.did == ["fetch /sql", "fetch /law"]
    del server.wrong["/law"]
    now[0] = AGAIN
    await loader.want(wanted)
    answer = await ended(loader, {"sql": "/other", "law": "/law"})
    assert answer["served"] == ["law", "sql"]


async def test_adapter_that_is_not_wanted_any_more_is_not_kept() -> None:
    server = Server()
    loader = AdapterLoader(server)
    await loader.want({"sql": "/sql"})
    await asyncio.sleep(0)
    await loader.want({})
    server.go.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert server.served == {}
    assert server.did == ["fetch /sql", "load sql /cache/sql", "unload sql"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"adapters": ["sql"]}', b'{"adapters": {"sql": 1}}', b'{"adapters": {"sql": ""}}',
     b'{"adapters": {"": "/sql"}}', b'{"adapters": {%b}}' % b",".join(b'"%d": "x"' % n for n in range(257))],
)  # fmt: skip
def test_wrong_list_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the body must be"):
        parse_wanted(body)
    assert parse_wanted(b'{"adapters": {"sql": "/sql"}}') == {"sql": "/sql"}
