// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"slices"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"prezero/agent"
)

// A node publishes at most once a second, and small changes when they have lasted: ten thousand nodes
// must not write ten thousand times a second.
const (
	every = time.Second
	small = 5 * time.Second
	// A change of at least one part in this number is large.
	part = 16
	// The API's bound for devices with taints.
	perSlice = 64
)

// gate says when a change is worth a publication.
type gate struct {
	published []stock
	isDown    bool
	at        time.Time
	// Since when there is a small change.
	since time.Time
}

// opens tells whether to publish now.
func (g *gate) opens(all []stock, isDown bool, now time.Time) bool {
	if isDown == g.isDown && slices.Equal(all, g.published) && !g.at.IsZero() {
		g.since = time.Time{}
		return false
	}
	if g.since.IsZero() {
		g.since = now
	}
	isSmall := isDown == g.isDown && isSmall(g.published, all)
	return now.Sub(g.at) >= every && (g.at.IsZero() || !isSmall || now.Sub(g.since) >= small)
}

func (g *gate) note(all []stock, isDown bool, now time.Time) {
	*g = gate{published: all, isDown: isDown, at: now}
}

// domain is where pages are alike.
type domain struct{ node, page int64 }

// isSmall tells whether a change is one of a few blocks: not of a pool, and neither the first nor the last
// that is ready.
func isSmall(before, after []stock) bool {
	type tally struct{ ready, total, largest int64 }
	count := func(all []stock) (map[domain]tally, map[kind]int64) {
		tallies, ready := map[domain]tally{}, map[kind]int64{}
		for _, one := range all {
			of := tallies[domain{one.node, one.page}]
			of.total += one.bytes
			of.largest = one.largest
			if one.isReady {
				of.ready += one.bytes
				ready[one.kind] = one.bytes
			}
			tallies[domain{one.node, one.page}] = of
		}
		return tallies, ready
	}
	was, had := count(before)
	is, has := count(after)
	moved := map[domain]int64{}
	for of := range has {
		if _, known := had[of]; !known {
			had[of] = 0
		}
	}
	for of, bytes := range had {
		moved[domain{of.node, of.page}] += max(has[of]-bytes, bytes-has[of])
	}
	for where, now := range is {
		then, known := was[where]
		if !known || then.total != now.total || then.largest != now.largest || (then.ready == 0) != (now.ready == 0) ||
			moved[where]*part >= max(now.total, 1) {
			return false
		}
	}
	return len(was) == len(is)
}

// publisher is what the helper of the kubelet's plugins does with slices.
type publisher interface {
	PublishResources(context.Context, resourceslice.DriverResources) error
}

// Offer is how a node's memory is published.
type Offer struct {
	// The pool of devices, named as the node.
	Node string
	// Whether devices say which huge pages of the node a claim takes.
	IsMapped bool
	// How much of each node and page size is never published as ready.
	Rest int64
}

// Publish tells the scheduler what there is, until the context ends. Health hears of every look.
func (d *Driver) Publish(ctx context.Context, offer Offer, to publisher, health *Health) {
	var g gate
	var last []agent.Supply
	for ; ctx.Err() == nil; pause(ctx, every) {
		supplies, err := d.agent.Supply(ctx)
		health.Note(err)
		isDown := err != nil
		if isDown {
			supplies = last
		} else {
			last = supplies
		}
		if supplies == nil {
			continue
		}
		all, now := stocks(supplies, d.takenFrom(), offer.Rest), time.Now()
		if !g.opens(all, isDown, now) {
			continue
		}
		var pool resourceslice.Pool
		for some := range slices.Chunk(devices(all, isDown, offer.IsMapped), perSlice) {
			pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: some})
		}
		resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{offer.Node: pool}}
		if err := to.PublishResources(ctx, resources); err != nil {
			klog.FromContext(ctx).Error(err, "publish")
			continue
		}
		g.note(all, isDown, now)
	}
}

func pause(ctx context.Context, long time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(long):
	}
}
