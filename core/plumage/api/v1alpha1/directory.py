"""`spec.directory`: where replicas publish their cached prefixes, and how a new replica warms up from it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from plumage import defaults
from plumage.api.v1alpha1.field_types import SPACES, WORDS, SecretKeyRef
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.scheduling import Placement
from plumage.api.v1alpha1.struct import Rule, Struct
from plumage.quantity import Quantity, between

__all__ = ["DirectorySpec", "ManagedDirectory", "RedisRef", "WarmupSpec"]

REDIS_URL = rf"^(unix|rediss?(\+(cluster|sentinel))?)://[^{SPACES}@]+$"
WORDS[REDIS_URL] = (
    "unix://, redis://, rediss://, redis+cluster:// or redis+sentinel:// and an address, without a password"
)
USER = r"^[A-Za-z0-9_.-]+$"
WORDS[USER] = "letters, digits, '_', '.' and '-'"


def _memory_fits(managed: Any) -> bool:
    limit = managed.resources.limits.get("memory")
    return limit is None or bool(managed.max_memory.value < limit.value)


class ManagedDirectory(Placement):
    """A Valkey that Plumage runs for the pool."""

    max_memory: Annotated[Quantity, between("16Mi", "64Ti")] = Field(
        Quantity("256Mi"),
        description="Memory for hashes and counts. Each replica has a share. A full share drops its coldest entries.",
    )
    resources: Resources = Field(
        Resources(),
        description="Compute of the directory. By default it requests 50m and maxMemory, with a limit of 64Mi above "
        "1.5 times maxMemory.",
    )
    rules: ClassVar = (
        Rule(
            at="maxMemory",
            must="must be below resources.limits.memory: buffers of clients need memory too",
            cel="!has(self.resources.limits) || !('memory' in self.resources.limits) || "
            "quantity(string(self.maxMemory)).isLessThan(quantity(string(self.resources.limits['memory'])))",
            reads=("resources", "max_memory"),
            holds=_memory_fits,
        ),
    )


class RedisRef(Struct):
    """An existing Redis or Valkey, 6.2 or newer."""

    url: Annotated[str, Field(min_length=1, max_length=1024, pattern=REDIS_URL)] = Field(
        description="Its address: redis://HOST:PORT, redis+cluster://HOST:PORT,HOST:PORT or "
        "redis+sentinel://HOST:PORT,HOST:PORT/PRIMARY; with rediss for TLS."
    )
    username: Annotated[str, Field(min_length=1, max_length=256, pattern=USER)] | None = Field(
        None, description="Its ACL user. When absent, the default user."
    )
    password_ref: SecretKeyRef | None = Field(None, description="Its password.")
    ca_ref: SecretKeyRef | None = Field(None, description="Certificates to trust with rediss://.")
    rules: ClassVar = (
        Rule(
            at="username",
            must="may not be set without passwordRef",
            cel="!has(self.username) || has(self.passwordRef)",
            reads=("username", "password_ref"),
            holds=lambda ref: ref.username is None or ref.password_ref is not None,
        ),
        Rule(
            at="caRef",
            must="may not be set without rediss:// in url: other URLs have no TLS",
            cel="!has(self.caRef) || self.url.startsWith('rediss')",
            reads=("url", "ca_ref"),
            holds=lambda ref: ref.ca_ref is None or ref.url.startswith("rediss"),
        ),
    )


class WarmupSpec(Struct):
    """A new replica computes the pool's hottest prefixes before it is Ready."""

    enabled: bool = Field(defaults.WARMUP, description="Whether new replicas warm up.")
    max_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        defaults.WARMUP_TOKENS, description="Prompt tokens to compute."
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(
        defaults.WARMUP_SECONDS, description="Seconds after which a replica is Ready even if it is not warm."
    )


class DirectorySpec(Struct):
    """The pool's own directory (the default), or a reference to one; never both."""

    managed: ManagedDirectory = Field(ManagedDirectory(), description="A directory that Plumage runs.")
    redis_ref: RedisRef | None = Field(None, description="A Redis to use instead.")
    warmup: WarmupSpec = Field(WarmupSpec(), description="How new replicas warm up.")
    rules: ClassVar = (
        Rule(
            at="redisRef",
            must="may not be set together with managed: exactly one directory",
            cel="!has(self.redisRef) || !has(self.managed)",
            reads=("managed", "redis_ref"),
            holds=lambda spec: spec.redis_ref is None or "managed" not in spec.model_fields_set,
            written=("managed",),
        ),
    )
