// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"testing"
	"time"

	"prezero/agent"
)

// pacer is a gate and its clock.
type pacer struct {
	gate *gate
	now  time.Time
	size int64
}

func newPacer(pace Pace) *pacer {
	return &pacer{newGate(pace), time.Unix(1000, 0), 64 * mib}
}

// look after a while at so many ready blocks of 16; some bytes are taken from them.
func (p *pacer) look(after time.Duration, free, taken int64, isDown bool) (change, bool) {
	p.now = p.now.Add(after)
	from := map[string]int64{}
	if taken > 0 {
		from[ready(p.size)] = taken * p.size
	}
	supply := at(16*p.size, agent.ReadyBlocks{BlockBytes: p.size, ReadyBytes: free * p.size})
	all := stocks([]agent.Supply{supply}, from, 0)
	what, opens := p.gate.opens(all, from, isDown, p.now)
	if opens {
		p.gate.note(what, all, isDown, p.now)
	}
	return what, opens
}

// Promise P143 (pods): The driver publishes at most once in 75 seconds in the long run, and only what
// the scheduler cannot know; a loan leaves its sum as it was; a daemon that is down is tainted.
func TestAChangeIsPublishedWhenTheLedgerCannotKnowIt(t *testing.T) {
	p := newPacer(Pace{Interval: 100 * time.Second, Burst: 2, Settle: 10 * time.Minute, Part: 8})
	for _, step := range []struct {
		what         string
		after        time.Duration
		ready, taken int64
		isDown       bool
		want         change
		opens        bool
	}{
		{"the first is published at once", 0, 0, 0, false, first, true},
		{"so is the first block of a device", 2 * time.Second, 1, 0, false, edge, true},
		{"more of it waits for the interval", time.Second, 8, 0, false, major, false},
		{"and is published then", 2 * time.Minute, 8, 0, false, major, true},
		{"what claims take is in the ledger", time.Second, 6, 2, false, nothing, false},
		{"and what they give back", time.Second, 8, 0, false, nothing, false},
		{"the last free block is told", 5 * time.Minute, 0, 6, false, edge, true},
		{"one block of sixteen is not", time.Second, 1, 6, false, edge, true},
		{"as long as it is none", time.Second, 2, 6, false, minor, false},
		{"nor after minutes", 9 * time.Minute, 2, 6, false, minor, false},
		{"but once it has lasted", 2 * time.Minute, 2, 6, false, minor, true},
		{"a dead daemon is told at once", time.Second, 2, 6, true, daemon, true},
		{"and that it is back", time.Second, 2, 6, false, daemon, true},
		{"also again, on credit", time.Second, 2, 6, true, daemon, true},
		{"but not for ever", time.Second, 2, 6, false, daemon, false},
	} {
		what, opens := p.look(step.after, step.ready, step.taken, step.isDown)
		if what != step.want || opens != step.opens {
			t.Errorf("%s: %v %v", step.what, what, opens)
		}
	}
}

// Promise P347 (pods): A node in a storm writes its devices at most 0.02 times a second, and a node at
// rest never.
func TestAStormIsTwoHundredthsOfAWriteASecondAndRestIsNone(t *testing.T) {
	p := newPacer(DefaultPace)
	p.look(0, 8, 0, false)
	count := func(long time.Duration, ready func(second int64) (int64, bool)) (writes int) {
		for second := range int64(long / time.Second) {
			blocks, isDown := ready(second)
			if _, opens := p.look(time.Second, blocks, 0, isDown); opens {
				writes++
			}
		}
		return writes
	}
	// All and nothing by turns, every second, and a daemon that is started again and again.
	const hour = time.Hour
	for name, storm := range map[string]func(int64) (int64, bool){
		"all and nothing": func(second int64) (int64, bool) { return second % 2 * 8, false },
		"a dying daemon":  func(second int64) (int64, bool) { return 8, second/5%2 == 0 },
		"any number":      func(second int64) (int64, bool) { return second * 7 % 9, false },
	} {
		writes := count(hour, storm)
		if most := int(hour/time.Second)/50 + 1; writes > most || writes < 30 {
			t.Errorf("%s: %d writes in an hour, and the budget is %d", name, writes, most)
		}
	}
	count(hour, func(int64) (int64, bool) { return 8, false })
	if writes := count(hour, func(int64) (int64, bool) { return 8, false }); writes > 0 {
		t.Errorf("%d writes of a node at rest", writes)
	}
}

func TestNodesThatStartAtOnceDoNotWriteAtOnce(t *testing.T) {
	at := map[time.Duration]bool{}
	for range 50 {
		p := newPacer(DefaultPace)
		p.look(0, 8, 0, false)
		for second := range int64(100) {
			if _, opens := p.look(time.Second, 12, 0, false); opens {
				at[time.Duration(second)] = true
				break
			}
		}
	}
	if len(at) < 10 {
		t.Errorf("50 nodes wrote in %d different seconds", len(at))
	}
}
