// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// unheard is the time after which the daemon counts as down: a restart takes less.
const unheard = 10 * time.Second

// Health of the node's daemon, as the driver sees it.
type Health struct {
	last atomic.Pointer[heard]
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
}

func (h *Health) heard() heard {
	if last := h.last.Load(); last != nil {
		return *last
	}
	return heard{}
}

var errSilent = errors.New("no call has ended")

// ServeHTTP answers 200 while the daemon answers and the kubelet has the driver registered, and says why
// not otherwise.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	last := h.heard()
	switch {
	case time.Since(last.at) > unheard:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "the prezero daemon does not answer: %v\n", cmp.Or(last.err, errSilent))
	case h.IsRegistered != nil && !h.IsRegistered():
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, "the kubelet has not registered the driver")
	default:
		fmt.Fprintln(w, "ok")
	}
}
