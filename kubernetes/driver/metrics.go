// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"prezero/agent"
)

// Metrics of a driver.
type Metrics struct {
	registry    *prometheus.Registry
	calls       *prometheus.HistogramVec
	lentBytes   *prometheus.CounterVec
	claims      prometheus.Gauge
	reclaims    prometheus.Counter
	writes      *prometheus.CounterVec
	published   *prometheus.GaugeVec
	daemonUp    prometheus.Gauge
	dropped     *prometheus.GaugeVec
	statusFails prometheus.Counter
	daemonInfo  *prometheus.GaugeVec
}

// NewMetrics in a registry of their own, with those of the process.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prezero_dra_call_seconds", Help: "Time for one claim of a call of the kubelet.",
			Buckets: []float64{.005, .02, .1, .5, 2, 10, 40},
		}, []string{"call", "result"}),
		lentBytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prezero_dra_lent_bytes_total", Help: "Bytes that were lent to claims, by whether they were ready or zeroed while the pod waited.",
		}, []string{"state"}),
		claims: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prezero_dra_claims", Help: "Claims that have loans on this node.",
		}),
		reclaims: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prezero_dra_reclaimed_claims_total", Help: "Claims with loans that the driver returned unasked, since the claims were no longer this node's.",
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prezero_dra_publications_total", Help: "Changes of this node's devices that were published, by their reason.",
		}, []string{"reason"}),
		published: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "prezero_dra_published_bytes", Help: "Bytes of each published device.",
		}, []string{"device"}),
		daemonUp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prezero_dra_daemon_up", Help: "Whether the last call to the daemon was answered.",
		}),
		dropped: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "prezero_dra_disabled_feature", Help: "Features that devices need and the API server lacks.",
		}, []string{"feature"}),
		daemonInfo: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "prezero_dra_daemon_info", Help: "Versions of the daemon and of the driver; always 1.",
		}, []string{"daemon", "driver"}),
		statusFails: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prezero_dra_claim_status_errors_total", Help: "Statuses of claims that could not be written.",
		}),
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.calls, m.lentBytes, m.claims, m.reclaims, m.writes, m.published, m.daemonUp, m.dropped, m.statusFails, m.daemonInfo)
	return m
}

func outcome(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

func (m *Metrics) prepared(err error, took time.Duration) {
	m.calls.WithLabelValues("prepare", outcome(err)).Observe(took.Seconds())
}

func (m *Metrics) unprepared(err error, took time.Duration) {
	m.calls.WithLabelValues("unprepare", outcome(err)).Observe(took.Seconds())
}

func (m *Metrics) lent(loans []agent.Lent) {
	for _, one := range loans {
		if !one.Found {
			m.lentBytes.WithLabelValues("ready").Add(float64(one.ReadyBytes()))
			m.lentBytes.WithLabelValues("zeroed").Add(float64(max(one.Bytes()-one.ReadyBytes(), 0)))
		}
	}
}

// daemon of that version is the node's now.
func (m *Metrics) daemon(version string) {
	m.daemonInfo.Reset()
	m.daemonInfo.WithLabelValues(version, Version).Set(1)
}

func (m *Metrics) reclaimed() { m.reclaims.Inc() }

// looked at the daemon, and at how many claims have loans.
func (m *Metrics) looked(err error, claims int) {
	up := 1.0
	if err != nil {
		up = 0
	}
	m.daemonUp.Set(up)
	m.claims.Set(float64(claims))
}

func (m *Metrics) wrote(reason string, all []stock) {
	m.writes.WithLabelValues(reason).Inc()
	m.published.Reset()
	for _, one := range all {
		m.published.WithLabelValues(one.name()).Set(float64(one.bytes))
	}
}

// Handler of the driver's metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// DaemonMetrics hands on what the daemon says at its own socket, as it says it.
func DaemonMetrics(socket string) http.Handler {
	var dialer net.Dialer
	return &httputil.ReverseProxy{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", socket)
			},
		},
		Rewrite: func(request *httputil.ProxyRequest) {
			// Only what is asked for is the caller's; where and what, never.
			accept := request.In.Header.Get("Accept")
			request.Out.URL.Scheme, request.Out.URL.Host, request.Out.URL.Path, request.Out.URL.RawQuery = "http", "localhost", "/metrics", ""
			request.Out.Method, request.Out.Body, request.Out.ContentLength = http.MethodGet, http.NoBody, 0
			request.Out.Header = http.Header{"Accept": {accept}}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "the daemon serves no metrics: set [metrics] listen to a socket in its configuration ("+err.Error()+")", http.StatusServiceUnavailable)
		},
	}
}
