"""A small container runtime behind the Container Runtime Interface, so that a real kubelet can run where runc and crun
can not start (they need CAP_SYS_RESOURCE). Each container is a process in its pod's own network namespace and its own
mount, PID, UTS and IPC namespaces. ../README.md says what is not there."""
