// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"prezero/agent"
)

// Version of the driver. Its minor version is the newest that it needs of a daemon.
const Version = "0.1.0"

// Skew tells loudly when the daemon is older than the driver, whose calls it may not know: by an event of
// the node and by a metric. Claims are served all the same, and one that needs a newer daemon fails alone.
type Skew struct {
	agent    agent.Client
	features *Features
	metrics  *Metrics
	mu       sync.Mutex
	told     string
}

// NewSkew between a driver and its node's daemon.
func NewSkew(client agent.Client, features *Features, metrics *Metrics) *Skew {
	return &Skew{agent: client, features: features, metrics: metrics}
}

// Look at the daemon's version. A daemon that does not answer is another check's.
func (s *Skew) Look(ctx context.Context) {
	version, err := s.agent.Version(ctx)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if version == s.told {
		return
	}
	s.told = version
	s.metrics.daemon(version)
	if isOlder(version, Version) {
		klog.FromContext(ctx).Info("the daemon is older than the driver: update it first", "daemon", version, "driver", Version)
		s.features.events.Eventf(s.features.node, corev1.EventTypeWarning, "PrezeroDaemonOlder",
			"The prezero daemon of this node is version %s, and driver %s version %s: update the daemon first, then the driver.", version, Name, Version)
	}
}

// isOlder compares major and minor versions: daemons and drivers of one minor version go together. A text
// without a version never counts as older.
func isOlder(one, other string) bool {
	a, isA := minorOf(one)
	b, isB := minorOf(other)
	return isA && isB && (a[0] < b[0] || (a[0] == b[0] && a[1] < b[1]))
}

func minorOf(version string) (numbers [2]int, is bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return numbers, false
	}
	for nth := range numbers {
		number, err := strconv.Atoi(parts[nth])
		if err != nil {
			return numbers, false
		}
		numbers[nth] = number
	}
	return numbers, true
}
