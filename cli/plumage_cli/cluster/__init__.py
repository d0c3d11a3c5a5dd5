"""Pools in a Kubernetes cluster, as the kubeconfig of whoever asks reaches them. Reads only; needs the extra `kube`."""
