// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// Pace bounds how often a node writes its devices. Each write wakes all pods of the cluster that wait for
// devices of any driver. The scheduler's own ledger is exact without most writes: what a claim takes stays
// counted on its device. It has to hear only what the ledger cannot know.
type Pace struct {
	// Interval between writes in the long run. Each node draws each one anew, within a fifth of it, so that
	// nodes that start at once do not write at once.
	Interval time.Duration
	// Burst is how many writes may come at once after a rest.
	Burst int
	// Settle is the time after which a small change is written, too.
	Settle time.Duration
	// Part makes a change large: one part in this number of the pool.
	Part int64
}

// DefaultPace writes at most once in 75 seconds in the long run.
var DefaultPace = Pace{Interval: 75 * time.Second, Burst: 2, Settle: 5 * time.Minute, Part: 8}

// look is how often the daemon is asked, and the least time between two writes.
const look = time.Second

// change is the reason for a publication, the weakest first.
type change int

const (
	nothing change = iota
	// Fewer blocks than a part of the pool.
	minor
	// A part of the pool, or another total.
	major
	// A device has memory for a claim and was published without, or the other way round.
	edge
	// The daemon went away or came back.
	daemon
	// The first publication.
	first
)

func (c change) String() string {
	return [...]string{"nothing", "minor", "major", "edge", "daemon", "first"}[c]
}

// gate says when a change is worth a publication.
type gate struct {
	pace      Pace
	published []stock
	isDown    bool
	isOpen    bool
	at        time.Time
	// Since when there is a change.
	since time.Time
	// How many writes may come at once now, and when there is one more. Below zero where the daemon's end
	// was told on credit.
	credit int
	next   time.Time
	// The interval that was drawn for the last write.
	drawn time.Duration
}

func newGate(pace Pace) *gate { return &gate{pace: pace, credit: pace.Burst} }

// opens returns the reason to publish, and whether to publish now.
func (g *gate) opens(all []stock, taken map[string]int64, isDown bool, now time.Time) (change, bool) {
	g.refill(now)
	what := g.change(all, taken, isDown)
	if what == nothing {
		g.since = time.Time{}
		return what, false
	}
	if g.since.IsZero() {
		g.since = now
	}
	long := now.Sub(g.at)
	switch what {
	case first:
		return what, true
	case daemon:
		return what, long >= look && g.credit > -g.pace.Burst
	case edge:
		return what, long >= look && g.credit > 0
	case major:
		return what, long >= g.drawn && g.credit > 0
	default:
		return what, long >= g.drawn && g.credit > 0 && now.Sub(g.since) >= g.pace.Settle
	}
}

func (g *gate) refill(now time.Time) {
	for g.credit < g.pace.Burst && !now.Before(g.next) {
		g.credit++
		g.next = g.next.Add(g.draw())
	}
}

// draw an interval from four to six fifths of the mean.
func (g *gate) draw() time.Duration {
	return g.pace.Interval*4/5 + rand.N(g.pace.Interval*2/5+1)
}

func (g *gate) note(what change, all []stock, isDown bool, now time.Time) {
	g.drawn = g.draw()
	if what != first {
		if g.credit == g.pace.Burst {
			g.next = now.Add(g.drawn)
		}
		g.credit--
	}
	g.published, g.isDown, g.isOpen, g.at, g.since = all, isDown, true, now, time.Time{}
}

// domain is where pages are alike.
type domain struct{ node, page int64 }

// change between what is published and what there is, of which claims have taken some.
func (g *gate) change(all []stock, taken map[string]int64, isDown bool) change {
	switch {
	case !g.isOpen:
		return first
	case isDown != g.isDown:
		return daemon
	case slices.Equal(all, g.published):
		return nothing
	}
	was, is := byKind(g.published), byKind(all)
	total, before, moved := map[domain]int64{}, map[domain]int64{}, map[domain]int64{}
	largest := minor
	for of := range union(was, is) {
		where := domain{of.node, of.page}
		total[where] += is[of]
		before[where] += was[of]
		if of.isReady {
			moved[where] += max(is[of]-was[of], was[of]-is[of])
		}
		// Whether a claim finds room there, by the ledger and by the daemon.
		step := cmp.Or(of.block, of.page)
		if has := taken[of.name()]; (was[of]-has >= step) != (is[of]-has >= step) {
			largest = edge
		}
	}
	for where := range total {
		if largest == minor && (total[where] != before[where] || moved[where]*g.pace.Part >= max(total[where], 1)) {
			largest = major
		}
	}
	return largest
}

func byKind(all []stock) map[kind]int64 {
	found := map[kind]int64{}
	for _, one := range all {
		found[one.kind] += one.bytes
	}
	return found
}

func union(a, b map[kind]int64) map[kind]bool {
	both := map[kind]bool{}
	for of := range a {
		both[of] = true
	}
	for of := range b {
		both[of] = true
	}
	return both
}
