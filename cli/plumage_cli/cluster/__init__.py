"""Reads pools, gateways and operators of a Kubernetes cluster through a kubeconfig. Needs the extra `kube`."""
