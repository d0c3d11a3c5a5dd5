"""Sorts the tools of a request, so that a client's changing order does not break its cached prefix.

Templates render tools before all messages, in the order and with the keys in which they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

__all__ = ["sorted_tools"]


def sorted_tools(body: Mapping[str, Any]) -> list[Any] | None:
    """Returns the tools by name, with sorted keys; None if they are sorted or are no list of objects."""
    tools = body.get("tools")
    if not isinstance(tools, list) or not all(type(tool) is dict for tool in tools):
        return None
    found: list[Any] = orjson.loads(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS))
    found.sort(key=lambda tool: (_name(tool), orjson.dumps(tool)))
    return None if orjson.dumps(found) == orjson.dumps(tools) else found


def _name(tool: Mapping[str, Any]) -> str:
    """The name of a function: of a chat's tool, or of one of the other APIs. A tool without one stands first."""
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else ""
