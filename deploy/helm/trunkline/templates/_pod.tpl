{{/* The template of a pod, the same in a Deployment and a StatefulSet. */}}
{{- define "trunkline.pod" -}}
{{- $name := include "trunkline.fullname" . -}}
{{- $backend := index .Values.backends .Values.backend -}}
metadata:
  labels:
    {{- include "trunkline.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
    {{- if .Values.inferencePool.enabled }}
    # Endpoint pickers read the metrics named vllm:* from pods with these labels.
    inference.networking.k8s.io/engine-type: vllm
    llm-d.ai/engine-type: vllm
    {{- end }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A change of the configuration restarts the pods, one after the other.
    checksum/config: {{ include "trunkline.config" . | sha256sum }}
    {{- if or .Values.auth.keys .Values.hub.token }}
    checksum/secret: {{ include "trunkline.secretData" . | sha256sum }}
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "trunkline.serviceAccount" . }}
  automountServiceAccountToken: false
  # Variables of a Service named trunkline, such as TRUNKLINE_PORT, would be read as settings.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add .Values.preStopSeconds .Values.gracefulTerminationTimeout 10 }}
  securityContext: {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $backend.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $backend.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $backend.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- $own := dict "labelSelector" (dict "matchLabels" (include "trunkline.selectorLabels" $ | fromYaml)) }}
    {{- range . }}
    - {{ toYaml (merge (dict) . $own) | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  containers:
    - name: trunkline
      image: {{ .Values.image.repository }}:{{ default (print .Chart.AppVersion $backend.tagSuffix) .Values.image.tag }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - --config=/etc/trunkline/config/trunkline.toml
        {{- with .Values.model }}
        - --model-id={{ . }}
        {{- end }}
        - --backend={{ .Values.backend }}
        - --hostname=0.0.0.0
        - --port={{ .Values.ports.http }}
        - --metrics-hostname=0.0.0.0
        - --metrics-port={{ .Values.ports.metrics }}
        - --graceful-termination-timeout={{ .Values.gracefulTerminationTimeout }}
        {{- if or .Values.auth.keys .Values.auth.existingSecret }}
        - --api-keys=/etc/trunkline/auth/keys.toml
        {{- end }}
        {{- if .Values.tls.existingSecret }}
        - --tls-cert=/etc/trunkline/tls/tls.crt
        - --tls-key=/etc/trunkline/tls/tls.key
        {{- end }}
        {{- if .Values.diskTier.enabled }}
        - --kv-disk-path=/kv/blocks
        {{- end }}
      env:
        - {name: HF_HOME, value: /models}
        # Packed weights and compiled kernels lie beside the models. Nothing else is written there.
        - {name: XDG_CACHE_HOME, value: /models/cache}
        - {name: HOME, value: /tmp}
        {{- range $key, $value := $backend.env }}
        - {name: {{ $key }}, value: {{ $value | quote }}}
        {{- end }}
        {{- if or .Values.hub.token .Values.hub.existingSecret }}
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: {{ default $name .Values.hub.existingSecret }}, key: hub-token}}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.extraEnvFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: http, containerPort: {{ .Values.ports.http }}}
        - {name: metrics, containerPort: {{ .Values.ports.metrics }}}
      # Waits for the download and the first load of the model. The other probes begin afterwards.
      startupProbe:
        httpGet: {path: /readyz, port: metrics}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ div (add .Values.probes.startupSeconds 4) 5 }}
      # A shard that restarts within a second keeps the pod in its Service: requests wait for it.
      readinessProbe:
        httpGet: {path: /readyz, port: metrics}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      livenessProbe:
        httpGet: {path: /livez, port: metrics}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      lifecycle:
        preStop: {sleep: {seconds: {{ .Values.preStopSeconds }}}}
      resources: {{- toYaml $backend.resources | nindent 8 }}
      securityContext: {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/trunkline/config, readOnly: true}
        - {name: models, mountPath: /models}
        - {name: tmp, mountPath: /tmp}
        {{- if or .Values.auth.keys .Values.auth.existingSecret }}
        - {name: auth, mountPath: /etc/trunkline/auth, readOnly: true}
        {{- end }}
        {{- if .Values.tls.existingSecret }}
        - {name: tls, mountPath: /etc/trunkline/tls, readOnly: true}
        {{- end }}
        {{- if .Values.diskTier.enabled }}
        - {name: kv, mountPath: /kv}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ $name }}}
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    {{- if not (include "trunkline.ownModelVolume" .) }}
    - name: models
      {{- if or .Values.modelVolume.existingClaim .Values.modelVolume.size }}
      persistentVolumeClaim: {claimName: {{ default (print $name "-models") .Values.modelVolume.existingClaim }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    {{- end }}
    {{- if or .Values.auth.keys .Values.auth.existingSecret }}
    - name: auth
      secret:
        secretName: {{ default $name .Values.auth.existingSecret }}
        defaultMode: 0440
        items: [{key: keys.toml, path: keys.toml}]
    {{- end }}
    {{- with .Values.tls.existingSecret }}
    - name: tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
