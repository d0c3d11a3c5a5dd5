"""`spec.engine`: the engine of each replica. Its fields are an allow-list, because they create a pod."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from plumage import defaults
from plumage.api.v1alpha1.cache import EvictionSpec, HostMemorySpec
from plumage.api.v1alpha1.feather import FeatherSpec
from plumage.api.v1alpha1.field_types import Label, Memory, ObjectRef, Seconds, StringRule, Subdomain, Text
from plumage.api.v1alpha1.gpus import GPU
from plumage.api.v1alpha1.pods import OWNED_ENV, EnvVar, Resources
from plumage.api.v1alpha1.scheduling import Placement
from plumage.api.v1alpha1.simulator import SimulatorSpec
from plumage.api.v1alpha1.struct import LIST_KEY, Rule, Struct, named_once

__all__ = ["OWNED_ARGS", "VLLM_PLUGIN", "EngineSpec", "EngineTlsSpec", "ExternalEnginesSpec", "ModelCacheSpec"]

# Plumage sets these itself. A second value would break routing, the directory or the drain.
OWNED_ARGS = (
    "--additional-config", "--api-key", "--download-dir", "--enable-prompt-tokens-details", "--host",
    "--kv-events-config", "--kv-transfer-config", "--model", "--port",
    "--revision", "--scheduler-cls", "--served-model-name", "--shutdown-timeout", "--ssl-ca-certs", "--ssl-cert-reqs",
    "--ssl-certfile", "--ssl-keyfile", "--tensor-parallel-size", "--uds", "-tp",
)  # fmt: skip
VLLM_PLUGIN = "plumage"
"""The plugin that VLLM_PLUGINS must name if it is set, because vLLM then loads only the named plugins."""


def _is_free(arg: str) -> bool:
    """Whether a user may set this argument. vLLM reads underscores as dashes."""
    return arg.split("=", 1)[0].replace("_", "-") not in OWNED_ARGS


_FREE = StringRule(
    must="may not be set: Plumage sets it itself",
    cel=f"!(self.split('=', 2)[0].replace('_', '-') in {list(OWNED_ARGS)})",
    holds=_is_free,
)


def _plugin_is_loaded(engine: Any) -> bool:
    named = [(variable.value or "").split(",") for variable in engine.env if variable.name == "VLLM_PLUGINS"]
    return all(VLLM_PLUGIN in plugins for plugins in named)


def _host_memory_fits(engine: Any) -> bool:
    limit = engine.resources.limits.get("memory")
    if limit is None or engine.host_memory is None or engine.host_memory.capacity is None:
        return True
    return bool(engine.host_memory.capacity.value < limit.value)


def _gpus_suffice(engine: Any) -> bool:
    """Whether the limit has enough GPUs. Without GPUs vLLM runs on a CPU, or on the device of another resource."""
    limit = engine.resources.limits.get(GPU)
    return limit is None or limit.value == 0 or engine.tensor_parallel_size <= limit.value


class ModelCacheSpec(Struct):
    """Where downloaded weights are stored."""

    claim_name: Subdomain | None = Field(
        None,
        description="A PersistentVolumeClaim with ReadWriteMany that all replicas mount. When absent, each replica "
        "downloads its own copy.",
    )
    size_limit: Memory | None = Field(
        None, description="The most disk space of a replica's own download. When absent, the node is the limit."
    )
    rules: ClassVar = (
        Rule(
            at="sizeLimit",
            must="may not be set together with claimName: a claim has its own size",
            cel="!has(self.claimName) || !has(self.sizeLimit)",
            reads=("claim_name", "size_limit"),
            holds=lambda cache: cache.claim_name is None or cache.size_limit is None,
        ),
    )


class EngineTlsSpec(Struct):
    """The certificates of engines and of their routers."""

    secret_name: Subdomain = Field(
        description="Secret of type kubernetes.io/tls, with tls.crt, tls.key and ca.crt, as cert-manager makes it. "
        "tls.crt must have the DNS name NAME-engine.NAMESPACE.svc, of the pool's NAME and NAMESPACE. Routers trust "
        "ca.crt. A change reaches running engines and routers."
    )
    client_secret_name: Subdomain | None = Field(
        None,
        description="Secret of the same form, with the certificate that routers show to engines. Engines then refuse "
        "clients without a certificate of its ca.crt. When absent, engines ask for none.",
    )


class ExternalEnginesSpec(Struct):
    """Engines that somebody else deploys, such as plain vLLM. They have no agent."""

    inference_pool_ref: ObjectRef = Field(
        description="An InferencePool of the group inference.networking.k8s.io. The pods that it selects are the "
        "replicas, at its target port."
    )


class EngineSpec(Placement):
    """The engine of each replica and its settings."""

    runtime: Literal["VLLM", "Simulator"] = Field("VLLM", description="vLLM, or the simulated engine.")
    image: Text | None = Field(None, description="Container image. When absent, the operator's image for the runtime.")
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="When the kubelet pulls the image."
    )
    args: tuple[Annotated[str, Field(max_length=1024), _FREE], ...] = Field(
        (),
        strict=False,
        max_length=64,
        description=f"Further arguments for vLLM, except those that Plumage sets itself: {', '.join(OWNED_ARGS)}.",
    )
    env: tuple[EnvVar, ...] = Field(
        (),
        strict=False,
        max_length=64,
        description=f"Further environment variables, except those that Plumage sets itself: {', '.join(OWNED_ENV)}.",
        json_schema_extra={LIST_KEY: "name"},
    )
    resources: Resources = Field(
        Resources(),
        description=f"Compute of the engine's container. GPUs are limits. If no GPU resource of any vendor is named, "
        f"VLLM asks for tensorParallelSize times {GPU}. {GPU}: 0 asks for none, for vLLM on a CPU. By default VLLM "
        "requests 1 CPU and 4Gi, with a limit of 32Gi times tensorParallelSize, and the size of /dev/shm added to "
        "both. Simulator requests 100m and 192Mi by default, with a limit of 1Gi. CPU has no default limit.",
    )
    agent_resources: Resources = Field(
        Resources(),
        description="Compute of the agent, the sidecar of each replica. By default it requests 50m and 192Mi, with a "
        "limit of 1Gi.",
    )
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="GPUs of one replica that share each layer. A pod asks for this number if resources name no GPU.",
    )
    shared_memory: Memory | None = Field(
        None,
        description="Size of /dev/shm, from the pod's memory. When absent, 1Gi with tensorParallelSize above 1, "
        "otherwise the container's default.",
    )
    model_cache: ModelCacheSpec = Field(ModelCacheSpec(), description="Where downloaded weights are stored.")
    startup_timeout_seconds: Seconds = Field(
        1800, description="Seconds to load and compile the model, after which a replica counts as failed."
    )
    tls: EngineTlsSpec | None = Field(None, description="TLS between routers and engines. When absent, plain HTTP.")
    feather: FeatherSpec = Field(FeatherSpec(), description="Batching by shared prefix.")
    eviction: EvictionSpec = Field(EvictionSpec(), description="Which KV blocks are evicted first.")
    host_memory: HostMemorySpec | None = Field(None, description="Host memory as a second tier. Off when absent.")
    batch_limit: Literal["Adaptive", "Static"] = Field(
        defaults.BATCH_LIMIT,
        description="Adaptive shrinks the running batch when requests are preempted because KV blocks are missing, and "
        "lets it grow again below 95 % of KV use. Static leaves it at its maximum.",
    )
    simulator: SimulatorSpec = Field(SimulatorSpec(), description="Size and speed of a simulated engine.")
    external: ExternalEnginesSpec | None = Field(
        None,
        description="Engines that somebody else deploys. The pool then has routers and a directory only. Of the other "
        "fields of engine only the HF_ variables of env have an effect: routers fetch the tokenizer. None when absent.",
    )
    runtime_class_name: Subdomain | None = Field(None, description="Runtime class of the pods.")
    scheduler_name: Label | None = Field(None, description="Scheduler of the pods.")
    service_account_name: Subdomain | None = Field(None, description="Service account of the pods.")
    image_pull_secrets: tuple[ObjectRef, ...] = Field(
        (),
        strict=False,
        max_length=16,
        description="Secrets to pull images with.",
        json_schema_extra={LIST_KEY: "name"},
    )
    rules: ClassVar = (
        named_once("env", "a variable", "name"),
        Rule(
            at="env",
            must=f"may not set VLLM_PLUGINS without {VLLM_PLUGIN} in its value: vLLM loads only the plugins named "
            "there",
            cel="!has(self.env) || self.env.all(one, one.name != 'VLLM_PLUGINS' || "
            f"(has(one.value) && '{VLLM_PLUGIN}' in one.value.split(',')))",
            reads=("env",),
            holds=_plugin_is_loaded,
        ),
        named_once("imagePullSecrets", "a Secret", "name"),
        Rule(
            at="hostMemory.capacity",
            must="must be below resources.limits.memory",
            cel="!has(self.hostMemory) || !has(self.hostMemory.capacity) || !has(self.resources.limits) || "
            "!('memory' in self.resources.limits) || quantity(string(self.hostMemory.capacity))"
            ".isLessThan(quantity(string(self.resources.limits['memory'])))",
            reads=("resources", "host_memory"),
            holds=_host_memory_fits,
        ),
        Rule(
            at="hostMemory.capacity",
            must="must be set with runtime VLLM: without it vLLM has no host tier",
            cel="self.runtime != 'VLLM' || !has(self.hostMemory) || has(self.hostMemory.capacity)",
            reads=("runtime", "host_memory"),
            holds=lambda engine: (
                engine.runtime != "VLLM" or engine.host_memory is None or engine.host_memory.capacity is not None
            ),
        ),
        Rule(
            at="tensorParallelSize",
            must=f"may not be above {GPU} of resources.limits",
            cel=f"!has(self.resources.limits) || !('{GPU}' in self.resources.limits) || "
            f"quantity(string(self.resources.limits['{GPU}'])).compareTo(quantity('0')) == 0 || "
            f"double(self.tensorParallelSize) <= quantity(string(self.resources.limits['{GPU}'])).asApproximateFloat()",
            reads=("tensor_parallel_size", "resources"),
            holds=_gpus_suffice,
        ),
        Rule(
            at="tensorParallelSize",
            must="must be 1 with runtime Simulator: it has no GPU",
            cel="self.runtime != 'Simulator' || self.tensorParallelSize == 1",
            reads=("tensor_parallel_size", "runtime"),
            holds=lambda engine: engine.runtime == "VLLM" or engine.tensor_parallel_size == 1,
        ),
        Rule(
            at="simulator",
            must="may not be set with runtime VLLM",
            cel="self.runtime != 'VLLM' || !has(self.simulator)",
            reads=("runtime", "simulator"),
            holds=lambda engine: engine.runtime == "Simulator" or "simulator" not in engine.model_fields_set,
            written=("simulator",),
        ),
        Rule(
            at="external",
            must="may not be set with runtime Simulator: Plumage makes no engine then",
            cel="self.runtime != 'Simulator' || !has(self.external)",
            reads=("runtime", "external"),
            holds=lambda engine: engine.runtime == "VLLM" or engine.external is None,
        ),
        Rule(
            at="external",
            must="may not be set together with tls: routers know no certificate of these engines",
            cel="!has(self.external) || !has(self.tls)",
            reads=("external", "tls"),
            holds=lambda engine: engine.external is None or engine.tls is None,
        ),
        Rule(
            at="args",
            must="may not be set with runtime Simulator: its settings are under simulator",
            cel="self.runtime != 'Simulator' || !has(self.args) || self.args.size() == 0",
            reads=("runtime", "args"),
            holds=lambda engine: engine.runtime == "VLLM" or not engine.args,
        ),
    )
