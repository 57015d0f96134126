// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"fmt"
	"sync"
)

const (
	// The daemon serves 64 connections of root's agents. These two leave 16 for other calls.
	mostLending = 32
	mostEnding  = 16
	// mostOfOne is the share of a namespace. Each of its loans may wait 2 seconds for memory that its owner
	// still holds open; other namespaces use the remaining turns meanwhile.
	mostOfOne = 4
)

// turns bound how many calls are made at a time, and of each namespace.
type turns struct {
	all chan struct{}
	mu  sync.Mutex
	of  map[string]*share
}

// share of one namespace. It exists while a call of that namespace runs or waits.
type share struct {
	slots chan struct{}
	users int
}

func newTurns(most int) *turns {
	return &turns{all: make(chan struct{}, most), of: map[string]*share{}}
}

// take a turn; the returned function gives it back.
func (t *turns) take(ctx context.Context, namespace string) (release func(), err error) {
	own := t.enter(namespace)
	for nth, slots := range []chan struct{}{own.slots, t.all} {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			if nth > 0 {
				<-own.slots
			}
			t.leave(namespace, own)
			return nil, fmt.Errorf("the daemon serves others, of namespace %q or of all: %w", namespace, context.Cause(ctx))
		}
	}
	return func() {
		<-t.all
		<-own.slots
		t.leave(namespace, own)
	}, nil
}

func (t *turns) enter(namespace string) *share {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.of[namespace]
	if own == nil {
		own = &share{slots: make(chan struct{}, mostOfOne)}
		t.of[namespace] = own
	}
	own.users++
	return own
}

func (t *turns) leave(namespace string, own *share) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(t.of, namespace)
	}
}
