"""An engine serves the adapters that its agent asks for. A slow one delays no other; failed ones are tried again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from plumage_engine.adapters import (
    AGAIN,
    DOWNLOADS,
    LONGEST_AGAIN,
    AdapterError,
    AdapterLoader,
    AdapterServer,
    parse_wanted,
)


class Server(AdapterServer):
    """go: lets downloads end. hangs: sources whose download never ends. wrong: sources that fail, each with the error.
    refused: sources that the engine does not load. did: what was done, in order."""

    def __init__(self, served: dict[str, str] | None = None) -> None:
        self.served = served or {}
        self.go = asyncio.Event()
        self.hangs: set[str] = set()
        self.wrong: dict[str, Exception] = {}
        self.refused: set[str] = set()
        self.did: list[str] = []

    def sources(self) -> Mapping[str, str]:
        return self.served

    async def fetch(self, source: str) -> str:
        self.did.append(f"fetch {source}")
        if source in self.hangs:
            await asyncio.Event().wait()
        await self.go.wait()
        if source in self.wrong:
            raise self.wrong[source]
        return f"/cache{source}"

    async def load(self, name: str, source: str, folder: str) -> None:
        self.did.append(f"load {name} {folder}")
        await asyncio.sleep(0)
        if source in self.refused:
            raise AdapterError("its rank is too high")
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


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(100):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never holds")


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
    assert server.did == ["fetch /sql"], "its download was dropped"
    await loader.want({"sql": "/sql"})
    await until(lambda: len(server.did) == 3)
    await loader.want({})
    for _ in range(10):
        await asyncio.sleep(0)
    assert server.served == {}
    assert server.did[1:] == ["fetch /sql", "load sql /cache/sql", "unload sql"], "a load ends first"


async def test_hanging_downloads_delay_neither_folders_nor_later_changes() -> None:
    server = Server()
    server.go.set()
    server.hangs = {f"acme/{n}" for n in range(DOWNLOADS + 1)}
    slow = {source: source for source in sorted(server.hangs)}
    loader = AdapterLoader(server)
    await loader.want(slow | {"law": "/law"})
    for _ in range(10):
        await asyncio.sleep(0)
    answer = await loader.want(slow | {"law": "/law"})
    assert answer["served"] == ["law"]
    assert server.did.count(f"fetch acme/{DOWNLOADS}") == 0, "few downloads at a time"
    answer = await ended(loader, {"chess": "acme/chess"})
    assert answer["served"] == ["chess"], "a download that is no longer wanted makes room"


async def test_download_has_a_deadline() -> None:
    server = Server()
    server.hangs = {"acme/slow"}
    loader = AdapterLoader(server, fetch_seconds=0.01)
    for _ in range(500):
        answer = await loader.want({"slow": "acme/slow"})
        if answer["adapters"][0]["state"] == "Failed":
            break
        await asyncio.sleep(0.01)
    assert answer["adapters"][0]["message"] == "it could not be fetched within 0.01 s"


async def test_adapters_are_loaded_one_at_a_time() -> None:
    server, loading = Server(), 0
    load = server.load

    async def counted(name: str, source: str, folder: str) -> None:
        nonlocal loading
        loading += 1
        assert loading == 1
        await load(name, source, folder)
        loading -= 1

    server.load = counted  # type: ignore[method-assign]
    server.go.set()
    wanted = {name: f"/{name}" for name in "abcdef"}
    assert (await ended(AdapterLoader(server), wanted))["served"] == list("abcdef")


async def test_refused_adapter_is_tried_again_later_and_later() -> None:
    now, server = [0.0], Server()
    server.go.set()
    server.refused = {"/sql"}
    loader = AdapterLoader(server, lambda: now[0])
    tries = []
    for minute in range(180):
        now[0] = AGAIN * minute
        before = server.did.count("load sql /cache/sql")
        for _ in range(10):
            await loader.want({"sql": "/sql"})
            await asyncio.sleep(0)
        if server.did.count("load sql /cache/sql") > before:
            tries.append(minute)
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert gaps[:5] == [1, 2, 4, 8, 16]
    assert set(gaps[5:]) == {int(LONGEST_AGAIN / AGAIN)}


async def test_failures_that_are_no_longer_wanted_are_forgotten() -> None:
    server = Server()
    server.go.set()
    server.refused = {f"/{n}" for n in range(50)}
    loader = AdapterLoader(server)
    for n in range(50):
        await ended(loader, {f"a{n}": f"/{n}"})
    assert len(loader._failed) == 1


async def test_source_that_changes_during_its_load_is_loaded_next() -> None:
    server = Server()
    server.go.set()
    loader = AdapterLoader(server)
    await loader.want({"sql": "/old"})
    await until(lambda: "load sql /cache/old" in server.did)
    await ended(loader, {"sql": "/new"})
    assert server.served == {"sql": "/new"}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"adapters": ["sql"]}', b'{"adapters": {"sql": 1}}', b'{"adapters": {"sql": ""}}',
     b'{"adapters": {"": "/sql"}}', b'{"adapters": {%b}}' % b",".join(b'"%d": "x"' % n for n in range(257))],
)  # fmt: skip
def test_wrong_list_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the body must be"):
        parse_wanted(body)
    assert parse_wanted(b'{"adapters": {"sql": "/sql"}}') == {"sql": "/sql"}
