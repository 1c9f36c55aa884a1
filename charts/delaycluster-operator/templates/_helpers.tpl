{{- define "operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name when it says what this is, else RELEASE-delaycluster-operator. */}}
{{- define "operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "operator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "operator.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "operator.selector" -}}
app.kubernetes.io/name: {{ include "operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: delaycluster
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image by digest, tag or the chart's appVersion: (list $ .Values.image) */}}
{{- define "operator.image" -}}
{{- $chart := (index . 0).Chart -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The operator's own image: the nodes' with -operator after its name, unless it is named. */}}
{{- define "operator.ownImage" -}}
{{- $own := .Values.operatorImage -}}
{{- $repository := default (printf "%s-operator" .Values.image.repository) $own.repository -}}
{{- $image := dict "repository" $repository "tag" (default .Values.image.tag $own.tag) "digest" $own.digest -}}
{{- include "operator.image" (list . $image) -}}
{{- end -}}

{{/* "true" where the API server has OpenShift's SecurityContextConstraints, which choose the ids. */}}
{{- define "operator.openshift" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}true{{- end -}}
{{- end -}}

{{- define "operator.podSecurity" -}}
{{- if kindIs "invalid" .Values.podSecurityContext -}}
runAsNonRoot: true
{{- if not (include "operator.openshift" .) }}
runAsUser: 10001
runAsGroup: 10001
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- else -}}
{{- toYaml .Values.podSecurityContext -}}
{{- end -}}
{{- end -}}

{{/* Of the pods of DelayClusters that name none, as JSON; empty: the operator's choice, with ids. */}}
{{- define "operator.nodePodSecurity" -}}
{{- if not (kindIs "invalid" .Values.nodePodSecurityContext) -}}
{{- toJson .Values.nodePodSecurityContext -}}
{{- else if include "operator.openshift" . -}}
{{- dict "runAsNonRoot" true "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") | toJson -}}
{{- end -}}
{{- end -}}

{{- define "operator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
