"""Request fields that the router refuses, each with the reason that the client reads (docs/reference/requests.md).

A pool's `spec.router.allowedRequestFields` lets fields of the first table pass, and fields that are in no table here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FORBIDDEN", "PART_REASON", "STREAM_OPTIONS_REASON", "TEMPLATE_OPTIONS", "UNKNOWN", "UNKNOWN_TO_CHAIN"]

FORBIDDEN: Final[Mapping[str, str]] = {
    "chat_template": "it would run a template of the client's in place of the model's",
    "ec_transfer_params": "it would make an engine exchange caches with other engines",
    "kv_transfer_params": "it would make an engine exchange caches with other engines, or replace the prompt",
    "priority": "it would let a request overtake those of others",
    "prompt_embeds": "an engine would load it as a tensor, in place of a prompt that the router can read",
    "use_beam_search": "it makes many requests of one, which limits and routing do not count",
    "vllm_xargs": "it reaches extensions of the engine, kv_transfer_params among them",
    "watermarking": "it would switch off the operator's watermark",
}

UNKNOWN: Final = (
    "the router does not know this field: an engine that does may render or cache the prompt differently; "
    "spec.router.allowedRequestFields of the pool lets it pass"
)
STREAM_OPTIONS_REASON: Final = "it is no option of a stream that the router knows"
PART_REASON: Final = (
    "a content part has the fields of its type alone: others name a cache entry that all tenants share (uuid), or "
    "media that an engine would read beside it"
)

_RENDERING: Final = "it is an argument of rendering itself, not a variable of the template"
TEMPLATE_OPTIONS: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length",
        "messages", "padding", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation",
    ),
    _RENDERING,
)  # fmt: skip
"""What `chat_template_kwargs` may not name."""

UNKNOWN_TO_CHAIN: Final = frozenset(("chat_template", "kv_transfer_params", "prompt_embeds", "vllm_xargs"))
"""Of FORBIDDEN those that, where a pool lets them pass, may change the prompt or which caches are read."""
