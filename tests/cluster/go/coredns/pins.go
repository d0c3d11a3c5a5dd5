//go:build pins

// Package coredns pins the cluster's DNS server.
package coredns

import _ "github.com/coredns/coredns"
