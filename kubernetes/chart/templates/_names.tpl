{{/* SPDX-License-Identifier: Apache-2.0 OR MIT */}}
{{- define "prezero.name" -}}
{{ .Values.fullnameOverride | default (printf "%s-dra" .Release.Name) | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- define "prezero.selector" -}}
app.kubernetes.io/name: prezero-dra
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "prezero.labels" -}}
{{ include "prezero.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: prezero
{{- end -}}
{{- define "prezero.image" -}}
{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- define "prezero.placement" -}}
priorityClassName: {{ .Values.priorityClassName }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end -}}
