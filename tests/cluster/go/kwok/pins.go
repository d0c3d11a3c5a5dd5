//go:build pins

// Package kwok pins kwok, whose nodes and pods are only objects.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
