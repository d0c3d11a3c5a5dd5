//go:build pins

// Package kubernetes pins the programs of Kubernetes, and the protocol between kubelet and container runtime.
package kubernetes

import (
	_ "k8s.io/cri-api/pkg/apis/runtime/v1"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
