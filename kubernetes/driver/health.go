// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const (
	// unheard is the time after which the daemon counts as down: a restart takes less.
	unheard = 10 * time.Second
	// stuck is the time after which a driver that has not looked at its daemon must be started again. A look
	// has a deadline of 10 seconds.
	stuck = time.Minute
	// healthPeriod is how often the kubelet hears how devices are; it believes a report for 30 seconds.
	healthPeriod = 10 * time.Second
)

// Health of the node's daemon, as the driver sees it. None of it waits for a lock that a call holds.
type Health struct {
	last   atomic.Pointer[heard]
	looked atomic.Int64
	// Features that the API server lacks.
	lacks atomic.Pointer[[]string]
	// IsRegistered says whether the kubelet knows the driver.
	IsRegistered func() bool
}

// heard of the daemon: when it answered last, and why it did not since.
type heard struct {
	at  time.Time
	err error
}

// Note what came of a call. For one caller at a time.
func (h *Health) Note(err error) {
	next := heard{time.Now(), nil}
	if err != nil {
		next = heard{h.heard().at, err}
	}
	h.last.Store(&next)
	h.looked.Store(time.Now().UnixNano())
}

// Lacks notes which features devices need and the API server lacks: none, where all is well.
func (h *Health) Lacks(features []string) { h.lacks.Store(&features) }

func (h *Health) heard() heard {
	if last := h.last.Load(); last != nil {
		return *last
	}
	return heard{}
}

var errSilent = errors.New("no call has ended")

// Err is why no claim can be served, if so.
func (h *Health) Err() error {
	if last := h.heard(); time.Since(last.at) > unheard {
		return fmt.Errorf("the prezero daemon does not answer: %w", cmp.Or(last.err, errSilent))
	}
	if lacks := h.lacks.Load(); lacks != nil && len(*lacks) > 0 {
		return fmt.Errorf("the API server drops fields of this driver's devices: it needs Kubernetes 1.36, or the feature gates %s", strings.Join(*lacks, ", "))
	}
	if h.IsRegistered != nil && !h.IsRegistered() {
		return errors.New("the kubelet has not registered the driver")
	}
	return nil
}

// ServeHTTP answers 200 while claims can be served, and says why not otherwise: whether the pod is ready.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if err := h.Err(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintln(w, "ok")
}

// Live answers 200 while the driver looks at its daemon, whether that answers or not: what a new start of the
// driver may mend.
func (h *Health) Live(w http.ResponseWriter, _ *http.Request) {
	if looked := h.looked.Load(); looked != 0 && time.Since(time.Unix(0, looked)) > stuck {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, "the driver has not looked at its daemon for a minute")
		return
	}
	fmt.Fprintln(w, "ok")
}

// WatchHealthStatus tells the kubelet how the devices are that are published or that claims have. It shows it
// in the status of pods.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	if d.health == nil {
		return kubeletplugin.ErrHealthNotSupported
	}
	for ; ctx.Err() == nil; pause(ctx, healthPeriod) {
		report := d.healthReport()
		if len(report.Devices) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case reports <- report:
		}
	}
	return nil
}

func (d *Driver) healthReport() kubeletplugin.DeviceHealthReport {
	health, message := kubeletplugin.HealthStatusHealthy, ""
	if last := d.health.heard(); time.Since(last.at) > unheard {
		// Memory that is lent stays as it is while the daemon is away.
		health, message = kubeletplugin.HealthStatusUnknown, fmt.Sprintf("the prezero daemon does not answer: %v", cmp.Or(last.err, errSilent))
	}
	names := map[string]bool{}
	taken, _ := d.taken()
	for name := range taken {
		names[name] = true
	}
	if published := d.published.Load(); published != nil {
		for _, one := range *published {
			names[one.name()] = true
		}
	}
	var report kubeletplugin.DeviceHealthReport
	for name := range names {
		report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
			PoolName: d.node, DeviceName: name, Health: health, LastUpdated: time.Now(), Message: message,
		})
	}
	return report
}
