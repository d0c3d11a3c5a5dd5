{{/* Written by scripts/make_chart.py from plumage_operator.permissions. */}}

{{- define "plumage.rules.pools" -}}
- apiGroups: ["inference.plumage.dev"]
  resources: ["inferencegateways", "inferencepools"]
  verbs: ["list", "watch"]
- apiGroups: ["inference.plumage.dev"]
  resources: ["inferencegateways/status", "inferencepools/status"]
  verbs: ["patch"]
- apiGroups: [""]
  resources: ["configmaps", "serviceaccounts", "services"]
  verbs: ["create", "delete", "get", "list", "patch", "watch"]
- apiGroups: [""]
  resources: ["secrets"]
  verbs: ["create"]
- apiGroups: ["apps"]
  resources: ["deployments"]
  verbs: ["create", "delete", "get", "list", "patch", "watch"]
- apiGroups: ["networking.k8s.io"]
  resources: ["networkpolicies"]
  verbs: ["create", "delete", "get", "list", "patch", "watch"]
- apiGroups: ["policy"]
  resources: ["poddisruptionbudgets"]
  verbs: ["create", "delete", "get", "list", "patch", "watch"]
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: ["rolebindings"]
  verbs: ["create", "delete", "get", "list", "patch", "watch"]
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: ["clusterroles"]
  verbs: ["bind"]
  resourceNames: [{{ .Values.rbac.routerRole | quote }}]
- apiGroups: [""]
  resources: ["pods"]
  verbs: ["list", "patch", "watch"]
- apiGroups: [""]
  resources: ["events"]
  verbs: ["create", "list", "patch"]
{{- end }}

{{- define "plumage.rules.system" -}}
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  verbs: ["create"]
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  verbs: ["get", "update"]
  resourceNames: ["plumage-operator"]
{{- end }}

{{- define "plumage.rules.router" -}}
- apiGroups: ["discovery.k8s.io"]
  resources: ["endpointslices"]
  verbs: ["list", "watch"]
{{- end }}

{{- define "plumage.rules.gatewayApi" -}}
- apiGroups: ["gateway.networking.k8s.io"]
  resources: ["httproutes"]
  verbs: ["create", "delete", "get", "list", "patch", "watch"]
{{- end }}

{{- define "plumage.rules.inferenceExtension" -}}
- apiGroups: ["inference.networking.k8s.io"]
  resources: ["inferencepools"]
  verbs: ["create", "delete", "get", "list", "patch", "watch"]
{{- end }}

{{- define "plumage.rules.ingress" -}}
- apiGroups: ["networking.k8s.io"]
  resources: ["ingresses"]
  verbs: ["create", "delete", "get", "list", "patch", "watch"]
{{- end }}

{{- define "plumage.rules.podMonitors" -}}
- apiGroups: ["monitoring.coreos.com"]
  resources: ["podmonitors"]
  verbs: ["create", "delete", "get", "list", "patch", "watch"]
{{- end }}

{{- define "plumage.rules.writes" -}}
- apiGroups: [""]
  apiVersions: ["*"]
  resources: ["configmaps", "serviceaccounts", "services"]
  operations: [CREATE, UPDATE, DELETE]
- apiGroups: [""]
  apiVersions: ["*"]
  resources: ["secrets"]
  operations: [CREATE, UPDATE, DELETE]
- apiGroups: ["apps"]
  apiVersions: ["*"]
  resources: ["deployments"]
  operations: [CREATE, UPDATE, DELETE]
- apiGroups: ["gateway.networking.k8s.io"]
  apiVersions: ["*"]
  resources: ["httproutes"]
  operations: [CREATE, UPDATE, DELETE]
- apiGroups: ["inference.networking.k8s.io"]
  apiVersions: ["*"]
  resources: ["inferencepools"]
  operations: [CREATE, UPDATE, DELETE]
- apiGroups: ["monitoring.coreos.com"]
  apiVersions: ["*"]
  resources: ["podmonitors"]
  operations: [CREATE, UPDATE, DELETE]
- apiGroups: ["networking.k8s.io"]
  apiVersions: ["*"]
  resources: ["ingresses", "networkpolicies"]
  operations: [CREATE, UPDATE, DELETE]
- apiGroups: ["policy"]
  apiVersions: ["*"]
  resources: ["poddisruptionbudgets"]
  operations: [CREATE, UPDATE, DELETE]
- apiGroups: ["rbac.authorization.k8s.io"]
  apiVersions: ["*"]
  resources: ["rolebindings"]
  operations: [CREATE, UPDATE, DELETE]
- apiGroups: [""]
  apiVersions: ["*"]
  resources: ["pods"]
  operations: [CREATE, UPDATE, DELETE]
{{- end }}
