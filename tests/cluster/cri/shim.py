"""Becomes one container: `shim.py SPEC.json FD`, one for each.

It enters the pod's network namespace and makes new mount, PID, UTS and IPC namespaces. It builds the root: an overlay
over the image's, with the kubelet's mounts bound on top. Then it pivots into the root, changes to the wanted user and
executes. It raises no limit and needs no device group and no user namespace, so neither CAP_SYS_RESOURCE nor runc. Its
exit status is the container's: 128+n for signal n. The first process's pid is written to FD.

It runs as a file without site packages. After the root has changed no library can be imported, so all imports are at
the top.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import sys
import warnings  # noqa: F401  os.execvpe wants it when the library is out of sight
from typing import Any

NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, MNT_DETACH = 1, 24, 38, 2
LAST_CAPABILITY = 40
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[platform.machine()]
MOST_LINKS = 40  # the kernel's own limit
libc = ctypes.CDLL(None, use_errno=True)

SpecFields = dict[str, Any]


def check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(src: str | None, dst: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    source, target, fstype, options = (None if text is None else os.fsencode(text) for text in (src, dst, kind, data))
    check(libc.mount(source, target, fstype, ctypes.c_ulong(flags), options), f"mount {src} on {dst}")


def inside(root: str, path: str) -> str:
    """`path` under `root`. The image's links are followed within `root`."""
    found, todo, links = root, [part for part in path.split("/") if part], 0
    while todo:
        part = todo.pop(0)
        step = os.path.join(found, part)
        if part == ".":
            continue
        if part == "..":
            found = root if found == root else os.path.dirname(found)
        elif os.path.islink(step) and links < MOST_LINKS:
            links += 1
            link = os.readlink(step)
            found = root if link.startswith("/") else found
            todo = [part for part in link.split("/") if part] + todo
        else:
            found = step
    return found


def bind(root: str, src: str, dst: str, readonly: bool = False) -> None:
    target = inside(root, dst)
    if os.path.isdir(src):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            open(target, "w").close()
    mount(src, target, None, BIND | REC)
    if readonly:
        mount(None, target, None, BIND | REMOUNT | RDONLY)


def build_root(spec: SpecFields) -> None:
    mount(None, "/", None, REC | PRIVATE)
    root, upper, work = (os.path.join(spec["dir"], name) for name in ("root", "upper", "work"))
    for folder in (root, upper, work):
        os.makedirs(folder, exist_ok=True)
    mount("overlay", root, "overlay", 0, f"lowerdir={spec['rootfs']},upperdir={upper},workdir={work}")
    for name in ("proc", "sys", "dev", "tmp", "etc"):
        os.makedirs(inside(root, name), exist_ok=True)
    mount("proc", root + "/proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("sysfs", root + "/sys", "sysfs", NOSUID | NODEV | NOEXEC | RDONLY)
    build_devices(root)
    for each in sorted(spec["mounts"], key=lambda each: each["dst"].rstrip("/").count("/")):
        bind(root, each["src"], each["dst"], each["readonly"])
    if spec["readonly_rootfs"]:
        mount(None, root, None, BIND | REMOUNT | RDONLY)


def build_devices(root: str) -> None:
    mount("tmpfs", root + "/dev", "tmpfs", NOSUID, "mode=755,size=64k")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        bind(root, "/dev/" + name, "/dev/" + name)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink("/proc/self/fd" + target, f"{root}/dev/{name}")
    os.makedirs(root + "/dev/shm")
    mount("tmpfs", root + "/dev/shm", "tmpfs", NOSUID | NODEV, "mode=1777,size=64m")


def change_root(root: str) -> None:
    os.chdir(root)
    check(libc.syscall(PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def become(spec: SpecFields) -> None:
    """Sets the working folder, capabilities and user. Afterwards the process has only the container's rights."""
    cwd = spec["cwd"] or "/"
    os.makedirs(cwd, exist_ok=True)
    os.chdir(cwd)
    if spec["no_capabilities"]:
        for number in range(LAST_CAPABILITY + 1):
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    os.setgroups(spec["groups"])
    os.setgid(spec["gid"])
    os.setuid(spec["uid"])
    # After setuid, which clears it: the container ends with its shim.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if spec["no_new_privs"]:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def run_container(spec: SpecFields) -> None:
    os.setsid()
    if spec["cgroup"]:
        with open(spec["cgroup"] + "/cgroup.procs", "w") as group:
            group.write("0")
    hostname = spec["hostname"].encode()
    check(libc.sethostname(hostname, len(hostname)), "sethostname")
    build_root(spec)
    change_root(os.path.join(spec["dir"], "root"))
    os.umask(0o022)
    become(spec)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)  # Python ignores some, and a container starts clean
    os.environ.clear()
    os.environ.update(spec["env"])
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])


def wait_for(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 1)  # else the log's pipes would stay open after the container closed its copies
    os.dup2(nothing, 2)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def main() -> None:
    with open(sys.argv[1]) as file:
        spec: SpecFields = json.load(file)
    answer = int(sys.argv[2])
    if spec["netns"]:
        network = os.open(spec["netns"], os.O_RDONLY)
        check(libc.setns(network, NEWNET), "setns of the network")
        os.close(network)
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as first:
            first.write("0")  # other runtimes do this too
    check(libc.unshare(NEWNS | NEWUTS | NEWIPC | NEWPID), "unshare")
    pid = os.fork()
    if pid:
        os.write(answer, str(pid).encode())
        os.close(answer)
        wait_for(pid)
    os.close(answer)
    try:
        run_container(spec)
    except BaseException as error:  # only the log can report this
        os.write(2, f"cannot start {spec['argv']}: {error}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
