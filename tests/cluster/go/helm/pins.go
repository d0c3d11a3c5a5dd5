//go:build pins

// Package helm pins Helm's command.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
