"""`spec.model`: the model of a pool, and its names."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from plumage import defaults
from plumage.api.v1alpha1.field_types import SPACES, WORDS, SecretKeyRef, Text
from plumage.api.v1alpha1.metadata import Tally
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.struct import LIST_KEY, Rule, Struct, TransitionRule
from plumage.models import BUILTIN, is_known

__all__ = ["MOST_ADAPTERS", "Adapter", "AdapterStatus", "ModelSpec"]

URI = rf"^((hf|pvc|oci|s3|builtin)://|file://(localhost)?/)[^{SPACES}/][^{SPACES}]*$"
MOST_ADAPTERS = 64
NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$"
WORDS |= {
    URI: "a URI of a known scheme: hf://Qwen/Qwen3-8B, file:///models/qwen, pvc://claim/path, "
    "oci://registry/image:tag, s3://bucket/path or builtin://tiny-chat",
    NAME: "letters, digits, '.', '_', '/', ':' and '-', beginning with a letter or digit",
}
Uri = Annotated[str, Field(min_length=1, max_length=2048, pattern=URI)]
ServedName = Annotated[str, Field(min_length=1, max_length=256, pattern=NAME)]

_BUILT_IN = f"must name a built-in model after builtin://: {', '.join(BUILTIN)}"

# In CEL: whether a builtin:// URI names an existing model; a model's served name; whether all names differ.
_KNOWN = "!{0}.startsWith('builtin://') || {0}.matches('^builtin://(" + "|".join(BUILTIN) + ")/*$')"
_SERVED = "(has({0}.name) ? {0}.name : {0}.uri.find('[^/]+/*$').replace('/', ''))"
_NAMES = (
    f"[{_SERVED.format('self')}] + (has(self.aliases) ? self.aliases : []) + "
    "(has(self.adapters) ? self.adapters.map(adapter, adapter.name) : [])"
)
_DIFFER = f"({_NAMES}).all(one, ({_NAMES}).exists_one(other, other == one))"


class Adapter(Struct):
    """A LoRA adapter, served as a model with its own name. It shares no cached prefixes with the model."""

    name: ServedName = Field(description="Name that clients ask for.")
    uri: Uri = Field(description="Where the adapter's weights are: hf://, file://, pvc:// or oci://.")
    rules: ClassVar = (
        Rule(
            at="uri",
            must="may not be builtin://: no adapter is built in",
            cel="!self.uri.startsWith('builtin://')",
            reads=("uri",),
            holds=lambda adapter: not adapter.uri.startswith("builtin://"),
        ),
        Rule(
            at="uri",
            must="may not be s3://: vLLM loads no adapter from there; use hf://, file://, pvc:// or oci://",
            cel="!self.uri.startsWith('s3://')",
            reads=("uri",),
            holds=lambda adapter: not adapter.uri.startswith("s3://"),
        ),
    )


class AdapterStatus(Struct):
    """One LoRA adapter on the ready replicas. The operator writes it."""

    model_config = ConfigDict(extra="ignore")  # the operator may be newer

    name: ServedName = Field(description="Name that clients ask for.")
    replicas: Tally = Field(0, description="Ready replicas that serve it.")
    failed_replicas: Tally = Field(0, description="Ready replicas that could not load it.")
    message: str = Field("", max_length=4096, description="The replicas that do not serve it, and why.")


def _served_name(model: Any) -> str:
    name: str = model.name or model.uri.rstrip("/").rpartition("/")[2]
    return name


def _names_differ(model: Any) -> bool:
    names = [_served_name(model), *model.aliases, *(adapter.name for adapter in model.adapters)]
    return len(set(names)) == len(names)


class ModelSpec(Struct):
    """The model of a pool."""

    uri: Uri = Field(
        description="Where the weights are: hf://ORGANISATION/MODEL, pvc://CLAIM/FOLDER of a PersistentVolumeClaim, "
        "oci://IMAGE mounted as a volume (Kubernetes 1.35, or 1.31 with the feature gate ImageVolume), file:///FOLDER "
        "of the engine's image, s3://BUCKET/FOLDER, or builtin:// for the simulator."
    )
    name: ServedName | None = Field(
        None, description="Name that clients ask for. When absent, the last part of the URI."
    )
    revision: Text | None = Field(
        None, description="Branch, tag or commit of the model. With a commit all replicas have the same weights."
    )
    token_ref: SecretKeyRef | None = Field(None, description="The token for a gated model of Hugging Face.")
    tokenizer: Uri | None = Field(
        None, description="Where tokenizer and chat template are. When absent, the model's URI."
    )
    aliases: tuple[ServedName, ...] = Field(
        (),
        strict=False,
        max_length=16,
        description="Further names for the model.",
        json_schema_extra={LIST_KEY: ""},
    )
    adapters: tuple[Adapter, ...] = Field(
        (),
        strict=False,
        max_length=MOST_ADAPTERS,
        description="LoRA adapters to serve with it. Running engines load and unload them, unless one needs a volume.",
        json_schema_extra={LIST_KEY: "name"},
    )
    adapter_slots: Annotated[int, Field(ge=1, le=64)] = Field(
        defaults.ADAPTER_SLOTS,
        description="Adapters that a replica computes with at a time. Each slot takes device memory. A request for "
        "another one waits there, so routers prefer replicas that have its adapter, or a free slot.",
    )
    adapter_max_rank: Annotated[int, Field(ge=1, le=512)] = Field(
        defaults.ADAPTER_MAX_RANK,
        description="The highest rank of an adapter. Each slot takes as much device memory as this rank needs.",
    )
    max_length: Annotated[int, Field(ge=16, le=16_777_216)] | None = Field(
        None, description="The most tokens of prompt and output together. When absent, the model's limit."
    )
    fetch_resources: Resources = Field(
        Resources(),
        description="Compute of the init containers of engines and routers that fetch a tokenizer from Hugging Face, "
        "or write random weights. By default they request 50m and 256Mi, with a limit of 2Gi.",
    )
    rules: ClassVar = (
        Rule(
            at="uri",
            must=_BUILT_IN,
            cel=f"{_KNOWN.format('self.uri')}",
            reads=("uri",),
            holds=lambda model: is_known(model.uri),
        ),
        Rule(
            at="tokenizer",
            must=_BUILT_IN,
            cel=f"!has(self.tokenizer) || {_KNOWN.format('self.tokenizer')}",
            reads=("tokenizer",),
            holds=lambda model: model.tokenizer is None or is_known(model.tokenizer),
        ),
        Rule(
            at="",
            must="must give the model, its aliases and its adapters different names",
            cel=_DIFFER,
            reads=("uri", "name", "aliases", "adapters"),
            holds=_names_differ,
        ),
    )
    changes: ClassVar = (
        TransitionRule(
            at="",
            must="may not change the name that clients ask for (name, or the last part of uri): engines of both names "
            "would be behind one router; set name to the old one, or make a new pool",
            cel=f"{_SERVED.format('self')} == {_SERVED.format('oldSelf')}",
        ),
    )

    @property
    def served_name(self) -> str:
        """The name that clients ask for."""
        return _served_name(self)
