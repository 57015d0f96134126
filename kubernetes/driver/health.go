// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// unheard for so long the daemon counts as down: a restart takes less.
const unheard = 10 * time.Second

// Health of the node's daemon, as the driver sees it.
type Health struct {
	mu    sync.Mutex
	heard time.Time
	err   error
	// IsRegistered says whether the kubelet knows the driver.
	IsRegistered func() bool
}

// Note what came of a call.
func (h *Health) Note(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err = err; err == nil {
		h.heard = time.Now()
	}
}

// ServeHTTP answers 200 while the daemon answers and the kubelet has the driver registered, and says why
// not otherwise.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	heard, err := h.heard, h.err
	h.mu.Unlock()
	switch {
	case time.Since(heard) > unheard:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "the prezero daemon does not answer: %v\n", err)
	case h.IsRegistered != nil && !h.IsRegistered():
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, "the kubelet has not registered the driver")
	default:
		fmt.Fprintln(w, "ok")
	}
}
