"""Request fields that the router refuses, with the reason that the client gets (docs/reference/requests.md lists them).

A pool's `spec.router.allowedRequestFields` allows fields of the first table, and fields that are in no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FORBIDDEN", "PART_REASON", "STREAM_OPTIONS_REASON", "TEMPLATE_OPTIONS", "UNKNOWN", "UNKNOWN_TO_CHAIN"]

FORBIDDEN: Final[Mapping[str, str]] = {
    "chat_template": "it would run the client's template instead of the model's",
    "ec_transfer_params": "it would make an engine exchange caches with other engines",
    "enable_response_messages": "it would move the usage out of the answer's end, where the router reads it",
    "kv_transfer_params": "it would make an engine exchange caches with other engines, or replace the prompt",
    "priority": "it would let a request overtake those of other clients",
    "prompt_embeds": "an engine would load it as a tensor, in place of a prompt that the router can read",
    "use_beam_search": "it turns one request into many, which limits and routing do not count",
    "vllm_xargs": "it reaches extensions of the engine, such as kv_transfer_params",
    "watermarking": "it would switch off the operator's watermark",
}

UNKNOWN: Final = (
    "the router does not know this field: an engine that does may render or cache the prompt differently; "
    "spec.router.allowedRequestFields of the pool allows it"
)
STREAM_OPTIONS_REASON: Final = "the router does not know this stream option"
PART_REASON: Final = (
    "a content part has only the fields of its type: others name a cache entry that all tenants share (uuid), or "
    "further media that an engine would read"
)

_RENDERING: Final = "it is an argument of the renderer, not a variable of the template"
TEMPLATE_OPTIONS: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length",
        "messages", "padding", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation",
    ),
    _RENDERING,
)  # fmt: skip
"""Names that `chat_template_kwargs` must not contain."""

UNKNOWN_TO_CHAIN: Final = frozenset(("chat_template", "kv_transfer_params", "prompt_embeds", "vllm_xargs"))
"""Fields of FORBIDDEN that may change the prompt or the caches that are read, where a pool allows them."""
