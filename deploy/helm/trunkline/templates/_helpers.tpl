{{- define "trunkline.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select pods. They never change, because a Deployment's selector cannot. */}}
{{- define "trunkline.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "trunkline.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "trunkline.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "trunkline.metadata" -}}
name: {{ include "trunkline.fullname" . }}
labels: {{- include "trunkline.labels" . | nindent 2 }}
{{- end -}}

{{- define "trunkline.serviceAccount" -}}
{{- default (ternary (include "trunkline.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Kind of the object that owns the pods. */}}
{{- define "trunkline.kind" -}}
{{- ternary "StatefulSet" "Deployment" .Values.diskTier.enabled -}}
{{- end -}}

{{/* Non-empty if each pod claims a model volume of its own, as a StatefulSet can. */}}
{{- define "trunkline.ownModelVolume" -}}
{{- with .Values.modelVolume -}}
{{- if and $.Values.diskTier.enabled .size (not .existingClaim) (eq .accessMode "ReadWriteOnce") }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{- define "trunkline.claimSpec" -}}
accessModes: [{{ .accessMode }}]
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end -}}

{{/* The file of `--config`. */}}
{{- define "trunkline.config" -}}
{{- $config := .Values.config -}}
{{- if .Values.diskTier.enabled -}}
{{- $gib := .Values.diskTier.size | trimSuffix "Gi" | trimSuffix "Ti" | int64 -}}
{{- $gib = ternary (mul $gib 1024) $gib (hasSuffix "Ti" .Values.diskTier.size) -}}
{{- $config = merge (dict) $config (dict "kv-disk-size" (printf "%dMiB" (div (mul $gib 1024 85) 100))) -}}
{{- end -}}
# Settings of `trunkline serve`, from the chart's value `config`.
{{- range $key, $value := $config }}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}
{{ $key }} = {{ int64 $value }}
{{- else }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Data of the Secret. */}}
{{- define "trunkline.secretData" -}}
{{- with .Values.auth.keys }}
keys.toml: {{ b64enc . }}
{{- end }}
{{- with .Values.hub.token }}
hub-token: {{ b64enc . }}
{{- end }}
{{- end -}}

{{/* Settings that have to agree with other objects → the value that sets them. */}}
{{- define "trunkline.ownedSettings" -}}
api-keys: auth.keys
backend: backend
graceful-termination-timeout: gracefulTerminationTimeout
hostname: ports.http
kv-disk-path: diskTier.enabled
metrics-hostname: ports.metrics
metrics-port: ports.metrics
model-id: model
port: ports.http
tls-cert: tls.existingSecret
tls-key: tls.existingSecret
{{- end -}}

{{/* Fails with one line if values contradict each other, which the schema cannot see. */}}
{{- define "trunkline.check" -}}
{{- range $setting, $value := fromYaml (include "trunkline.ownedSettings" .) -}}
{{- if hasKey $.Values.config $setting -}}
{{- fail (printf "`config.%s` would contradict the pod; hint: set `%s` instead" $setting $value) -}}
{{- end -}}
{{- end -}}
{{- with .Values -}}
{{- if and .auth.keys .auth.existingSecret -}}
{{- fail "`auth.keys` and `auth.existingSecret` are both set; hint: remove one" -}}
{{- end -}}
{{- if and .hub.token .hub.existingSecret -}}
{{- fail "`hub.token` and `hub.existingSecret` are both set; hint: remove one" -}}
{{- end -}}
{{- if eq (int .ports.http) (int .ports.metrics) -}}
{{- fail (printf "`ports.http` and `ports.metrics` are both %v; hint: choose two ports" .ports.http) -}}
{{- end -}}
{{- $several := or .autoscaling.type (gt (int .replicas) 1) -}}
{{- if and $several .modelVolume.size (not .modelVolume.existingClaim) (not .diskTier.enabled) (eq .modelVolume.accessMode "ReadWriteOnce") -}}
{{- fail "`modelVolume` is for one pod (`ReadWriteOnce`), but there may be several; hint: use `accessMode: ReadWriteMany`, or `size: \"\"`" -}}
{{- end -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) -}}
{{- fail (printf "`autoscaling.minReplicas` is %v, above `maxReplicas`, %v; hint: lower it" .autoscaling.minReplicas .autoscaling.maxReplicas) -}}
{{- end -}}
{{- if and (eq .autoscaling.type "keda") (not .autoscaling.prometheusUrl) -}}
{{- fail "`autoscaling.prometheusUrl` is empty, but KEDA asks Prometheus; hint: set it to an address such as http://prometheus-operated.monitoring:9090" -}}
{{- end -}}
{{- if and .ingress.enabled (not .ingress.hosts) -}}
{{- fail "`ingress.hosts` is empty; hint: name a host, such as `{llm.example.com}`" -}}
{{- end -}}
{{- if and .httpRoute.enabled (not .httpRoute.parentRefs) -}}
{{- fail "`httpRoute.parentRefs` is empty; hint: name a gateway, such as `[{name: public}]`" -}}
{{- end -}}
{{- if and .inferencePool.enabled (not .inferencePool.endpointPicker.name) -}}
{{- fail "`inferencePool.endpointPicker.name` is empty; hint: name the picker's Service" -}}
{{- end -}}
{{- if and .inferencePool.enabled .tls.existingSecret -}}
{{- fail "`inferencePool.enabled` and `tls.existingSecret` are both set, but an InferencePool knows no TLS to pods; hint: let the gateway end TLS" -}}
{{- end -}}
{{- end -}}
{{- end -}}
