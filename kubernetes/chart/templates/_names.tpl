{{/* SPDX-License-Identifier: Apache-2.0 OR MIT */}}
{{- define "prezero.image" -}}
{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- define "prezero.placement" -}}
priorityClassName: {{ .Values.priorityClassName }}
nodeSelector: {{ toJson .Values.nodeSelector }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end -}}
