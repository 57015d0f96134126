// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"prezero/agent"
)

// most sizes of blocks of one node and page size have a device of their own. A pool that learns its
// sizes may have dozens, and every node's devices are in the scheduler's memory.
const most = 8

// kind is what a device's name says.
type kind struct {
	node, page int64
	isReady    bool
	// block is the size of each claim of ready memory; 0 where one file may have all of it.
	block int64
}

func (k kind) name() string {
	switch {
	case !k.isReady:
		return fmt.Sprintf("node%d-%dk-rest", k.node, k.page>>10)
	case k.block == 0:
		return fmt.Sprintf("node%d-%dk-ready", k.node, k.page>>10)
	default:
		return fmt.Sprintf("node%d-%dk-ready-%dk", k.node, k.page>>10, k.block>>10)
	}
}

func parseDevice(name string) (kind, error) {
	bad := fmt.Errorf("%q is no device of %s", name, Name)
	words := strings.Split(name, "-")
	if len(words) < 3 {
		return kind{}, bad
	}
	kib := func(word string) int64 {
		n, err := strconv.ParseInt(strings.TrimSuffix(word, "k"), 10, 64)
		if err != nil || n <= 0 || n > 1<<50 {
			return -1
		}
		return n << 10
	}
	node, err := strconv.ParseInt(strings.TrimPrefix(words[0], "node"), 10, 32)
	found := kind{node: node, page: kib(words[1]), isReady: words[2] == "ready"}
	if len(words) > 3 {
		found.block = kib(words[3])
	}
	// A misread would give another name.
	if err != nil || found.name() != name {
		return kind{}, bad
	}
	return found, nil
}

// stock is the published supply of one device.
type stock struct {
	kind
	bytes int64
	// The largest block of the pools.
	largest int64
}

// stocks of today: ready ones first, the smallest blocks before larger ones, as the scheduler tries
// them. The sum changes with the pool only, so that a claim that the scheduler has allocated and
// has yet to prepare counts once. Of each node and page size, `rest` is reserved for claims larger
// than any block.
func stocks(supplies []agent.Supply, taken map[string]int64, rest int64) []stock {
	var all []stock
	for _, s := range supplies {
		all = append(all, readyStocks(s, taken, s.TotalBytes-min(rest, s.TotalBytes))...)
		left := s.TotalBytes
		for _, one := range all {
			if one.node == s.Node && one.page == s.PageBytes {
				left -= one.bytes
			}
		}
		all = append(all, stock{kind{node: s.Node, page: s.PageBytes}, max(left, 0), s.BlockBytes})
	}
	return all
}

// readyStocks of one node and page size, up to a total of most.
func readyStocks(s agent.Supply, taken map[string]int64, room int64) []stock {
	// What claims have is counted on, whether there are other ready blocks of that size or not.
	bytes, isTaken := map[int64]int64{}, map[int64]bool{}
	for _, of := range s.ReadyBlocks {
		bytes[of.BlockBytes] += of.ReadyBytes
	}
	for name, n := range taken {
		if k, err := parseDevice(name); err == nil && k.isReady && k.node == s.Node && k.page == s.PageBytes {
			bytes[k.block] += n
			isTaken[k.block] = true
		}
	}
	sizes := slices.Sorted(maps.Keys(bytes))
	if keep := max(most, len(isTaken)); len(sizes) > keep {
		worth := func(size int64) int64 {
			if isTaken[size] {
				return math.MaxInt64
			}
			return bytes[size]
		}
		slices.SortStableFunc(sizes, func(a, b int64) int { return cmp.Compare(worth(b), worth(a)) })
		sizes = slices.Sorted(slices.Values(sizes[:keep]))
	}
	var all []stock
	for _, block := range sizes {
		step := cmp.Or(block, s.PageBytes)
		n := min(bytes[block], room)
		n -= n % step
		room -= n
		all = append(all, stock{kind{s.Node, s.PageBytes, true, block}, n, s.BlockBytes})
	}
	return all
}

// devices for the scheduler. With isMapped they say which of the node's own resources a claim takes, so
// that the scheduler counts huge pages once.
func devices(all []stock, isDown, isMapped bool) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, one := range all {
		if one.bytes < cmp.Or(one.block, one.page) {
			continue
		}
		state, block := "rest", one.largest
		if one.isReady {
			state, block = "ready", cmp.Or(one.block, one.largest)
		}
		device := resourceapi.Device{
			Name:                     one.name(),
			AllowMultipleAllocations: ptr.To(true),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"resource.kubernetes.io/numaNode": {IntValue: ptr.To(one.node)},
				"pageBytes":                       {IntValue: ptr.To(one.page)},
				"blockBytes":                      {IntValue: ptr.To(block)},
				"state":                           {StringValue: ptr.To(state)},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{Capacity: one.capacity()},
		}
		if isMapped {
			pages := resource.NewQuantity(one.page, resource.BinarySI)
			name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + pages.String())
			one := resource.NewQuantity(1, resource.DecimalSI)
			device.NodeAllocatableResources = map[corev1.ResourceName]resourceapi.NodeAllocatableResource{
				name: {Mapping: &resourceapi.NodeAllocatableMapping{CapacityKey: ptr.To(resourceapi.QualifiedName(Capacity)), CapacityMultiplier: one}},
			}
			// A driver without the mapping cannot read the field of 1.36, and sees by this that there is one.
			device.Attributes["mapped"] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
		}
		if isDown {
			device.Taints = []resourceapi.DeviceTaint{{Key: Name + "/daemon-down", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
		devices = append(devices, device)
	}
	return devices
}

// capacity of a device, and the part that a claim can have of it. A claim is one file, and a file
// one block. Of ready blocks each claim gets, and counts as, one of them; a claim larger than any
// block gets none. Other memory is divisible by pages.
func (s stock) capacity() resourceapi.DeviceCapacity {
	step := cmp.Or(s.block, s.page)
	bytes := s.bytes - s.bytes%step
	quantity := *resource.NewQuantity(step, resource.BinarySI)
	valid := resourceapi.CapacityRequestPolicyRange{Min: &quantity}
	// The API wants room for two steps.
	if s.block != 0 || bytes < 2*step {
		valid.Max = &quantity
	} else {
		valid.Step = &quantity
	}
	return resourceapi.DeviceCapacity{
		Value:         *resource.NewQuantity(bytes, resource.BinarySI),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &quantity, ValidRange: &valid},
	}
}
