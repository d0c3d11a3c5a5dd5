"""The RuntimeService of the interface: pods and containers. Requests and responses are generated messages. The modules
beside this one do the work."""

from __future__ import annotations

import logging
import os
import signal
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from cluster.cri import memory
from cluster.cri.container import Container, State
from cluster.cri.images import Image, ImageStore
from cluster.cri.network import NetworkError
from cluster.cri.pods import Held, Pod, Pods
from cluster.cri.spec import Mount, NoCommandError, Spec, arguments, environment, ids, ignored

__all__ = ["RuntimeService"]

_log = logging.getLogger(__name__)


class RuntimeService:
    """`pb` is the module of the interface's messages. Memory groups are made under `memory_group`; None makes none."""

    def __init__(self, pb: Any, store: ImageStore, pods: Pods, memory_group: Path | None) -> None:
        self._pb, self._store, self._pods, self._memory = pb, store, pods, memory_group
        self._said: set[str] = set()
        self._said_lock = threading.Lock()
        self._states = {
            State.CREATED: pb.CONTAINER_CREATED,
            State.RUNNING: pb.CONTAINER_RUNNING,
            State.EXITED: pb.CONTAINER_EXITED,
        }

    # The runtime itself.

    def Version(self, _request: Any, _context: Any) -> Any:
        name = {"runtime_name": "plumage-test", "runtime_version": "1.0.0"}
        return self._pb.VersionResponse(version="0.1.0", runtime_api_version="v1", **name)

    def Status(self, _request: Any, _context: Any) -> Any:
        fine = [self._pb.RuntimeCondition(type=kind, status=True) for kind in ("RuntimeReady", "NetworkReady")]
        status = self._pb.RuntimeStatus(conditions=fine)
        return self._pb.StatusResponse(status=status, runtime_handlers=[self._pb.RuntimeHandler(name="")])

    def RuntimeConfig(self, _request: Any, _context: Any) -> Any:
        linux = self._pb.LinuxRuntimeConfiguration(cgroup_driver=self._pb.CGROUPFS)
        return self._pb.RuntimeConfigResponse(linux=linux)

    def UpdateRuntimeConfig(self, _request: Any, _context: Any) -> Any:
        return self._pb.UpdateRuntimeConfigResponse()

    # Pods.

    def RunPodSandbox(self, request: Any, context: Any) -> Any:
        spaces = request.config.linux.security_context.namespace_options
        try:
            pod = self._pods.run(request.config, own_network=spaces.network != self._pb.NODE)
        except NetworkError as error:
            context.abort(grpc.StatusCode.UNKNOWN, f"pod network: {error}")
        return self._pb.RunPodSandboxResponse(pod_sandbox_id=pod.id)

    def StopPodSandbox(self, request: Any, _context: Any) -> Any:
        if (pod := self._pods.pod(request.pod_sandbox_id)) is not None:
            self._pods.stop(pod)
        return self._pb.StopPodSandboxResponse()

    def RemovePodSandbox(self, request: Any, _context: Any) -> Any:
        if (pod := self._pods.pod(request.pod_sandbox_id)) is not None:
            self._pods.remove(pod)
        return self._pb.RemovePodSandboxResponse()

    def PodSandboxStatus(self, request: Any, context: Any) -> Any:
        pod = self._pod(request.pod_sandbox_id, context)
        address = pod.network.address if pod.network else ""
        status = self._pb.PodSandboxStatus(
            **self._pod_fields(pod), network=self._pb.PodSandboxNetworkStatus(ip=address)
        )
        status.linux.namespaces.options.CopyFrom(pod.config.linux.security_context.namespace_options)
        return self._pb.PodSandboxStatusResponse(status=status)

    def ListPodSandbox(self, request: Any, _context: Any) -> Any:
        wanted, found = request.filter, []
        for pod in self._pods.pods():
            fields = self._pod_fields(pod)
            other_state = wanted.HasField("state") and wanted.state.state != fields["state"]
            if pod.id.startswith(wanted.id) and not other_state and _labelled(pod.config, wanted.label_selector):
                found.append(self._pb.PodSandbox(**fields))
        return self._pb.ListPodSandboxResponse(items=found)

    def _pod_fields(self, pod: Pod) -> dict[str, Any]:
        config = pod.config
        state = self._pb.SANDBOX_READY if pod.ready else self._pb.SANDBOX_NOTREADY
        described = {"metadata": config.metadata, "labels": config.labels, "annotations": config.annotations}
        return {"id": pod.id, "state": state, "created_at": pod.created_at, **described}

    # Containers.

    def CreateContainer(self, request: Any, context: Any) -> Any:
        pod, config = self._pod(request.pod_sandbox_id, context), request.config
        image = self._image(config.image.image, context)
        key = uuid.uuid4().hex
        try:
            group = self._memory_group(key, config)
            spec = self._spec(key, pod, config, image, group)
        except (NoCommandError, LookupError, OSError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        log = Path(pod.config.log_directory, config.log_path) if config.log_path else None
        self._pods.add(Held(pod, config, image, Container(spec, group, log), key))
        return self._pb.CreateContainerResponse(container_id=key)

    def StartContainer(self, request: Any, context: Any) -> Any:
        self._held(request.container_id, context).container.start()
        return self._pb.StartContainerResponse()

    def StopContainer(self, request: Any, _context: Any) -> Any:
        if (held := self._pods.container(request.container_id)) is not None:
            name = self._pb.Signal.Name(held.config.stop_signal) if held.config.stop_signal else "SIGTERM"
            held.container.stop(request.timeout, getattr(signal, name, signal.SIGTERM))
        return self._pb.StopContainerResponse()

    def RemoveContainer(self, request: Any, _context: Any) -> Any:
        if (held := self._pods.container(request.container_id)) is not None:
            self._pods.drop(held)
        return self._pb.RemoveContainerResponse()

    def ListContainers(self, request: Any, _context: Any) -> Any:
        wanted, found = request.filter, []
        for held in self._pods.containers():
            fields = self._container_fields(held)
            other_state = wanted.HasField("state") and wanted.state.state != fields["state"]
            other_pod = not held.pod.id.startswith(wanted.pod_sandbox_id)
            if other_state or other_pod or not held.id.startswith(wanted.id):
                continue
            if _labelled(held.config, wanted.label_selector):
                found.append(self._pb.Container(**fields, image=held.config.image, pod_sandbox_id=held.pod.id))
        return self._pb.ListContainersResponse(containers=found)

    def ContainerStatus(self, request: Any, context: Any) -> Any:
        held = self._held(request.container_id, context)
        container, config = held.container, held.config
        log = str(Path(held.pod.config.log_directory, config.log_path)) if config.log_path else ""
        ended = {"finished_at": container.finished_at, "exit_code": container.exit_code, "reason": container.reason}
        status = self._pb.ContainerStatus(
            **self._container_fields(held),
            **ended,
            started_at=container.started_at,
            image=self._pb.ImageSpec(image=held.image.name),
            mounts=config.mounts,
            log_path=log,
        )
        return self._pb.ContainerStatusResponse(status=status)

    def UpdateContainerResources(self, _request: Any, _context: Any) -> Any:
        return self._pb.UpdateContainerResourcesResponse()

    def ReopenContainerLog(self, request: Any, context: Any) -> Any:
        self._held(request.container_id, context).container.log.open()
        return self._pb.ReopenContainerLogResponse()

    def ExecSync(self, request: Any, context: Any) -> Any:
        container = self._held(request.container_id, context).container
        if container.state is not State.RUNNING:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the container is not running")
        try:
            code, out, err = container.run(list(request.cmd), request.timeout or None)
        except TimeoutError as error:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        return self._pb.ExecSyncResponse(stdout=out, stderr=err, exit_code=code)

    # Empty statistics: the kubelet's summary and its eviction manager request them.

    def ListContainerStats(self, _request: Any, _context: Any) -> Any:
        return self._pb.ListContainerStatsResponse()

    def ListPodSandboxStats(self, _request: Any, _context: Any) -> Any:
        return self._pb.ListPodSandboxStatsResponse()

    def ListMetricDescriptors(self, _request: Any, _context: Any) -> Any:
        return self._pb.ListMetricDescriptorsResponse()

    def ListPodSandboxMetrics(self, _request: Any, _context: Any) -> Any:
        return self._pb.ListPodSandboxMetricsResponse()

    # Parts of the above.

    def _pod(self, key: str, context: Any) -> Pod:
        if (pod := self._pods.pod(key)) is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"pod sandbox {key!r} not found")
        assert pod is not None
        return pod

    def _held(self, key: str, context: Any) -> Held:
        if (held := self._pods.container(key)) is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"container {key!r} not found")
        assert held is not None
        return held

    def _image(self, name: str, context: Any) -> Image:
        if (image := self._store.find(name)) is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"image {name} not found")
        assert image is not None
        return image

    def _container_fields(self, held: Held) -> dict[str, Any]:
        config = held.config
        image = {"image_ref": held.image.id, "image_id": held.image.id}
        described = {"metadata": config.metadata, "labels": config.labels, "annotations": config.annotations}
        state = self._states[held.container.state]
        return {"id": held.id, "state": state, "created_at": held.container.created_at, **image, **described}

    def _memory_group(self, key: str, config: Any) -> memory.MemoryGroup | None:
        limit = config.linux.resources.memory_limit_in_bytes
        if self._memory is None or limit <= 0:
            return None
        return memory.make(self._memory, key, limit)

    def _spec(self, key: str, pod: Pod, config: Any, image: Image, group: memory.MemoryGroup | None) -> Spec:
        security, hostname = config.linux.security_context, pod.config.hostname or os.uname().nodename
        user = security.run_as_user.value if security.HasField("run_as_user") else None
        gid = security.run_as_group.value if security.HasField("run_as_group") else None
        uid, gid = ids(image, security.run_as_username, user, gid)
        variables = {each.key: _text(each.value) for each in config.envs}
        self._say_what_is_ignored(pod, config, limited=group is not None)
        return Spec(
            pod=pod.name,
            name=config.metadata.name,
            dir=str(self._pods.folder / key),
            rootfs=image.rootfs,
            netns=pod.network.path if pod.network else "",
            cgroup=str(group.folder) if group else "",
            argv=arguments(config.command, config.args, image),
            env=environment(image, hostname, variables),
            cwd=config.working_dir or image.workdir,
            uid=uid,
            gid=gid,
            groups=list(security.supplemental_groups),
            hostname=hostname,
            readonly_rootfs=security.readonly_rootfs,
            no_new_privs=security.no_new_privs,
            no_capabilities="ALL" in security.capabilities.drop_capabilities,
            mounts=[*map(self._mount, config.mounts), Mount(str(pod.resolv_conf), "/etc/resolv.conf")],
        )

    def _mount(self, mount: Any) -> Mount:
        """A mount for the kubelet's one. A volume that is an image becomes a read-only mount of that image's root."""
        if not mount.image.image:
            return Mount(mount.host_path, mount.container_path, mount.readonly)
        image = self._store.find(mount.image.image)
        if image is None:
            raise LookupError(f"image {mount.image.image} of a volume not found")
        return Mount(str(Path(image.rootfs, mount.image_sub_path)), mount.container_path, readonly=True)

    def _say_what_is_ignored(self, pod: Pod, config: Any, *, limited: bool) -> None:
        """Logs what the pod asked for and this runtime lacks, once for each kind."""
        security, resources = config.linux.security_context, config.linux.resources
        kinds = ignored(
            cpu_quota=resources.cpu_quota,
            added=list(security.capabilities.add_capabilities),
            privileged=security.privileged,
            share_processes=security.namespace_options.pid != self._pb.CONTAINER,
            memory=resources.memory_limit_in_bytes > 0 and not limited,
        )
        with self._said_lock:
            fresh = set(kinds) - self._said
            self._said |= fresh
        for kind in sorted(fresh):
            _log.warning("%s asks for %s, which this runtime does not give", pod.name, kind)


def _labelled(config: Any, wanted: Mapping[str, str]) -> bool:
    return all(config.labels.get(key) == value for key, value in wanted.items())


def _text(value: str | bytes) -> str:
    return os.fsdecode(value)
