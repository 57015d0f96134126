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

// perSlice is the API's bound for devices with taints.
const perSlice = 64

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
	Pace Pace
}

// Publish tells the scheduler what there is, until the context ends. Health hears of every look.
func (d *Driver) Publish(ctx context.Context, offer Offer, to publisher, health *Health) {
	g := newGate(offer.Pace)
	var last []agent.Supply
	for ; ctx.Err() == nil; pause(ctx, look) {
		supplies, err := d.agent.Supply(ctx)
		health.Note(err)
		isDown := err != nil
		if isDown {
			supplies = last
		} else {
			last = supplies
		}
		taken, claims := d.taken()
		d.metrics.looked(err, claims)
		if supplies == nil {
			continue
		}
		all, now := stocks(supplies, taken, offer.Rest), time.Now()
		what, isOpen := g.opens(all, taken, isDown, now)
		if !isOpen {
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
		g.note(what, all, isDown, now)
		d.published.Store(&all)
		d.metrics.wrote(what.String(), all)
	}
}

func pause(ctx context.Context, long time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(long):
	}
}
