"""Stored responses: the id of one leads to the replica that stores it, for the tenant who asked for it.

An engine keeps what `previous_response_id` names in its own memory, so the next request must go there. The router sets
each response's id (`request_id` in the request). An id is random digits and a keyed hash of them, the tenant and the
replica. So any router finds the replica without a table, and nobody can use another tenant's id.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, TypeVar

from plumage_router.fleet.replicas import Fleet, Replica
from plumage_router.request.body import splice
from plumage_router.request.prompt import Prompt

__all__ = ["RANDOM_BYTES", "StoredResponses", "find_replica", "response_id"]

RANDOM_BYTES: Final = 12
_PREFIX: Final = "resp_"
_RANDOM_DIGITS: Final = 2 * RANDOM_BYTES
_ID: Final = re.compile(rf"{_PREFIX}[0-9a-f]{{{_RANDOM_DIGITS + 32}}}")

T = TypeVar("T")


class StoredResponses:
    """Finds the replicas of a pool's stored responses."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def named(self, prompt: Prompt, replica: Replica) -> bytes:
        """Returns the body for this replica, with the id of the response to come. The prompt must have an `id_salt`."""
        name = response_id(secrets.token_bytes(RANDOM_BYTES), prompt.id_salt or "", replica.id)
        return splice(prompt.payload, {"request_id": name})

    def home(self, prompt: Prompt) -> Replica | None:
        """Returns the replica that stores the response which this request continues or names; None if there is none."""
        return self.find(prompt.previous or "", prompt.id_salt or "")

    def find(self, response: str, salt: str) -> Replica | None:
        """Returns the replica that stores the response of a tenant; None if there is none. salt: the tenant's."""
        return find_replica(response, salt, ((replica.id, replica) for replica in self._fleet))


def response_id(random: bytes, salt: str, replica_id: str) -> str:
    """Makes an id. random: RANDOM_BYTES bytes. salt: the tenant's secret, empty without tenants."""
    digits = random.hex()
    return f"{_PREFIX}{digits}{_mark(digits, salt, replica_id)}"


def find_replica(given: str, salt: str, replicas: Iterable[tuple[str, T]]) -> T | None:
    """Returns the replica that stores the response; None if it left, or if the id is not of this tenant.

    replicas: id and replica.
    """
    if _ID.fullmatch(given) is None:
        return None
    digits, mark = given[len(_PREFIX) :][:_RANDOM_DIGITS], given[-32:]
    return next((replica for name, replica in replicas if _equal(_mark(digits, salt, name), mark)), None)


def _equal(mark: str, given: str) -> bool:
    return compare_digest(mark.encode(), given.encode("utf-8", "surrogatepass"))


def _mark(digits: str, salt: str, replica_id: str) -> str:
    key = blake2b(salt.encode("utf-8", "surrogatepass")).digest()
    return blake2b(f"{digits} {replica_id}".encode("utf-8", "surrogatepass"), digest_size=16, key=key).hexdigest()
