"""A router's life beside the requests: settings that it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage_router.config import RouterConfig
from plumage_router.server import Router


def config(folder: Path, **changes: Any) -> RouterConfig:
    """Of a router without replicas."""
    members = folder / "members.json"
    members.write_text('{"pool": "chat", "replicas": []}')
    settings = {
        "pool": "chat", "model": {"name": "tiny", "modelFolder": "builtin://tiny-chat"},
        "membershipFile": str(members), "listen": {"port": 0}, **changes,
    }  # fmt: skip
    return RouterConfig.model_validate(settings)


@pytest.mark.parametrize("policy", [{"options": {"rng": 1}}, {"lbgr": {"name": "x"}}])
async def test_an_option_that_the_router_gives_itself_is_refused_by_name(
    tmp_path: Path, policy: dict[str, Any]
) -> None:
    [name] = next(iter(policy.values()))
    with pytest.raises(ConfigurationError, match=f"^routing policy Lbgr has no option {name}: "):
        Router(config(tmp_path, policy={"name": "Lbgr", **policy}))
