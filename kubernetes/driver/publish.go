// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"prezero-dra/agent"
)

// A node publishes at most once a second, and small changes when they have lasted: ten thousand nodes
// must not write ten thousand times a second.
const (
	every = time.Second
	small = 5 * time.Second
	// A change of one part in so many is not small.
	part = 16
)

// level of one node and page size, as it is published.
type level struct {
	supply agent.Supply
	// What the scheduler may give away as ready, what is allocated so included, and all there is.
	ready, total int64
}

// levels of today: the sum of both devices changes with the pool only, so that what the scheduler has
// allocated and not prepared yet is counted once.
func levels(supplies []agent.Supply, taken map[string]int64) []level {
	var all []level
	for _, s := range supplies {
		total := s.TotalBytes
		ready := s.ReadyBytes + taken[deviceName(s.Node, s.PageBytes, true)]
		all = append(all, level{s, min(ready, total), total})
	}
	return all
}

// devices for the scheduler: per node and page size what is ready, and the rest. With isMapped they say
// which of the node's own resources a claim takes, so that the scheduler counts huge pages once.
func devices(all []level, isDown, isMapped bool) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, l := range all {
		// What is ready is lent by blocks: a claim of less gets, and counts as, a whole one.
		for _, one := range []struct {
			isReady     bool
			bytes, step int64
		}{{true, l.ready, max(l.supply.BlockBytes, l.supply.PageBytes)}, {false, l.total - l.ready, l.supply.PageBytes}} {
			bytes := one.bytes - one.bytes%one.step
			if bytes < 2*one.step {
				continue // the API wants room for two steps
			}
			step := *resource.NewQuantity(one.step, resource.BinarySI)
			state := "rest"
			if one.isReady {
				state = "ready"
			}
			device := resourceapi.Device{
				Name:                     deviceName(l.supply.Node, l.supply.PageBytes, one.isReady),
				AllowMultipleAllocations: ptr.To(true),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"resource.kubernetes.io/numaNode": {IntValue: ptr.To(l.supply.Node)},
					"pageBytes":                       {IntValue: ptr.To(l.supply.PageBytes)},
					"blockBytes":                      {IntValue: ptr.To(l.supply.BlockBytes)},
					"state":                           {StringValue: ptr.To(state)},
				},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{Capacity: {
					Value: *resource.NewQuantity(bytes, resource.BinarySI),
					RequestPolicy: &resourceapi.CapacityRequestPolicy{
						Default:    &step,
						ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &step, Step: &step},
					},
				}},
			}
			if isMapped {
				pages := resource.NewQuantity(l.supply.PageBytes, resource.BinarySI)
				name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + pages.String())
				device.NodeAllocatableResourceMappings = map[corev1.ResourceName]resourceapi.NodeAllocatableResourceMapping{
					name: {CapacityKey: ptr.To(resourceapi.QualifiedName(Capacity))},
				}
			}
			if isDown {
				device.Taints = []resourceapi.DeviceTaint{{Key: Name + "/daemon-down", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
			devices = append(devices, device)
		}
	}
	return devices
}

// gate says when a change is worth a publication.
type gate struct {
	published []level
	isDown    bool
	at        time.Time
	// Since when there is a small change.
	since time.Time
}

// opens tells whether to publish now.
func (g *gate) opens(all []level, isDown bool, now time.Time) bool {
	isSame, isSmall := isDown == g.isDown && len(all) == len(g.published), isDown == g.isDown && len(all) == len(g.published)
	for i := range all {
		if i >= len(g.published) {
			break
		}
		before, after := g.published[i], all[i]
		isSame = isSame && before.ready == after.ready && before.total == after.total && before.supply.BlockBytes == after.supply.BlockBytes
		moved := max(before.ready-after.ready, after.ready-before.ready)
		isSmall = isSmall && before.total == after.total && before.supply.BlockBytes == after.supply.BlockBytes &&
			moved*part < max(after.total, 1) && (before.ready == 0) == (after.ready == 0)
	}
	if isSame && !g.at.IsZero() {
		g.since = time.Time{}
		return false
	}
	if g.since.IsZero() {
		g.since = now
	}
	return now.Sub(g.at) >= every && (g.at.IsZero() || !isSmall || now.Sub(g.since) >= small)
}

func (g *gate) note(all []level, isDown bool, now time.Time) {
	*g = gate{published: all, isDown: isDown, at: now}
}

// publisher is what the helper of the kubelet's plugins does with slices.
type publisher interface {
	PublishResources(context.Context, resourceslice.DriverResources) error
}

// Publish tells the scheduler what there is, until the context ends. Health hears of every look.
func (d *Driver) Publish(ctx context.Context, node string, to publisher, health *Health, isMapped bool) {
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
		all, now := levels(supplies, d.takenFrom()), time.Now()
		if !g.opens(all, isDown, now) {
			continue
		}
		slice := resourceslice.Slice{Devices: devices(all, isDown, isMapped)}
		resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: {Slices: []resourceslice.Slice{slice}}}}
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
