{{/* The chart's name in names of objects. */}}
{{- define "plumage.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* What names of objects begin with; the longest suffix is "-external-metrics-reader" of cluster objects. */}}
{{- define "plumage.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 39 | trimSuffix "-" }}
{{- else if contains (include "plumage.name" .) .Release.Name }}
{{- .Release.Name | trunc 39 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "plumage.name" .) | trunc 39 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* The operator's Deployment, Service and account. */}}
{{- define "plumage.operator" -}}
{{- include "plumage.fullname" . }}-operator
{{- end }}

{{- define "plumage.serviceAccount" -}}
{{- if .Values.operator.serviceAccount.create }}
{{- default (include "plumage.operator" .) .Values.operator.serviceAccount.name }}
{{- else }}
{{- required "operator.serviceAccount.name must name an account where operator.serviceAccount.create is false" .Values.operator.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Names of cluster objects carry the namespace too where the operator is held to some, so that two may live side by side. */}}
{{- define "plumage.clusterName" -}}
{{- if .Values.watchNamespaces }}
{{- printf "%s-%s" .Release.Namespace (include "plumage.fullname" .) }}
{{- else }}
{{- include "plumage.fullname" . }}
{{- end }}
{{- end }}

{{/* What chooses the operator's pods; it never changes. */}}
{{- define "plumage.selector" -}}
app.kubernetes.io/name: {{ include "plumage.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "plumage.labels" -}}
{{ include "plumage.selector" . }}
{{ include "plumage.commonLabels" . }}
{{- end }}

{{/* Labels of all objects, less the component. */}}
{{- define "plumage.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: plumage
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Metadata after name and namespace: labels, and annotations if there are any. Call with (list $ ANNOTATIONS). */}}
{{- define "plumage.metadata" -}}
{{- $root := index . 0 -}}
{{- $annotations := merge (dict) (index . 1) $root.Values.commonAnnotations -}}
labels:
  {{- include "plumage.labels" $root | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* An image by its digest, else by its tag. Call with (list $ IMAGE). */}}
{{- define "plumage.image" -}}
{{- $root := index . 0 }}{{- $image := index . 1 }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{/* What pod security "restricted" asks of a container, and a root file system that nobody writes to. */}}
{{- define "plumage.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "plumage.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.operator.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Rights of the operator wherever pools are. */}}
{{- define "plumage.poolRules" -}}
{{ include "plumage.rules.pools" . }}
{{- if .Values.integrations.gatewayApi }}
{{ include "plumage.rules.gatewayApi" . }}
{{- end }}
{{- if .Values.integrations.inferenceExtension }}
{{ include "plumage.rules.inferenceExtension" . }}
{{- end }}
{{- if .Values.integrations.ingress }}
{{ include "plumage.rules.ingress" . }}
{{- end }}
{{- if .Values.integrations.podMonitors }}
{{ include "plumage.rules.podMonitors" . }}
{{- end }}
{{- end }}

{{/* The switches under `integrations` that are on, with commas. */}}
{{- define "plumage.integrations" -}}
{{- $on := list }}
{{- range $name, $wanted := .Values.integrations }}
{{- if $wanted }}{{ $on = append $on $name }}{{ end }}
{{- end }}
{{- join "," $on }}
{{- end }}
