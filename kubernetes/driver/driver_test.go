// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"prezero-dra/agent"
)

const mib = 1 << 20

func at(ready, total, block int64) agent.Supply {
	return agent.Supply{Node: 1, PageBytes: 2 * mib, BlockBytes: block, ReadyBytes: ready, TotalBytes: total}
}

func TestTheSumOfBothDevicesIsTheSameBeforeAndAfterALoan(t *testing.T) {
	name := deviceName(1, 2*mib, true)
	sum := func(supply agent.Supply, taken int64) (ready, all int64) {
		for _, device := range devices(levels([]agent.Supply{supply}, map[string]int64{name: taken}), false, false) {
			value := device.Capacity[Capacity].Value
			all += value.Value()
			if device.Name == name {
				ready = value.Value()
			}
		}
		return ready, all
	}
	// 16 MiB of ready memory move from the daemon's stock to a claim: nothing changes for the scheduler.
	before, all := sum(at(64*mib, 256*mib, 8*mib), 0)
	after, again := sum(at(48*mib, 256*mib, 8*mib), 16*mib)
	if before != 64*mib || after != before || again != all || all != 256*mib {
		t.Fatal(before, after, all, again)
	}
	// A device without room for two steps is left out: the API refuses it.
	if got := devices(levels([]agent.Supply{at(8*mib, 256*mib, 8*mib)}, nil), false, false); len(got) != 1 || got[0].Name != deviceName(1, 2*mib, false) {
		t.Fatalf("%+v", got)
	}
	for _, device := range devices(levels([]agent.Supply{at(64*mib, 256*mib, 8*mib)}, nil), true, false) {
		step := device.Capacity[Capacity].RequestPolicy.ValidRange.Step
		want := int64(2 * mib)
		if strings.HasSuffix(device.Name, "-ready") {
			want = 8 * mib
		}
		if step.Value() != want || len(device.Taints) != 1 {
			t.Fatalf("%+v", device)
		}
	}
}

func TestWhereTheClusterCountsClaimsADeviceSaysWhichPagesItTakes(t *testing.T) {
	supply := at(64<<30, 256<<30, 8<<30)
	supply.PageBytes = 1 << 30
	all := devices(levels([]agent.Supply{supply}, nil), false, true)
	for _, device := range all {
		mapping := device.NodeAllocatableResourceMappings["hugepages-1Gi"]
		if len(device.NodeAllocatableResourceMappings) != 1 || mapping.CapacityKey == nil || *mapping.CapacityKey != Capacity {
			t.Errorf("%+v", device.NodeAllocatableResourceMappings)
		}
	}
	if len(all) != 2 || devices(levels([]agent.Supply{supply}, nil), false, false)[0].NodeAllocatableResourceMappings != nil {
		t.Errorf("%+v", all)
	}
}

func TestSmallChangesWaitAndNoneComesTwiceInASecond(t *testing.T) {
	var g gate
	now := time.Unix(1000, 0)
	look := func(after time.Duration, ready int64, isDown bool) bool {
		now = now.Add(after)
		all := levels([]agent.Supply{at(ready, 1024*mib, 2*mib)}, nil)
		opens := g.opens(all, isDown, now)
		if opens {
			g.note(all, isDown, now)
		}
		return opens
	}
	for _, step := range []struct {
		what   string
		after  time.Duration
		ready  int64
		isDown bool
		opens  bool
	}{
		{"the first", 0, 512 * mib, false, true},
		{"the same", 2 * time.Second, 512 * mib, false, false},
		{"a small change", time.Second, 500 * mib, false, false},
		{"it is back", time.Second, 512 * mib, false, false},
		{"small again", time.Second, 500 * mib, false, false},
		{"it lasts", 4 * time.Second, 498 * mib, false, false},
		{"for 5 seconds", time.Second, 498 * mib, false, true},
		{"a large change at once", 500 * time.Millisecond, 128 * mib, false, false},
		{"a second later", 500 * time.Millisecond, 128 * mib, false, true},
		{"all is gone", time.Second, 0, false, true},
		{"the daemon is down", time.Second, 0, true, true},
		{"and stays down", 10 * time.Second, 0, true, false},
		{"and is back", time.Second, 0, false, true},
	} {
		if got := look(step.after, step.ready, step.isDown); got != step.opens {
			t.Errorf("%s: %v", step.what, got)
		}
	}
	// A supply that changes at every look, for a minute: a publication each 5 seconds.
	writes := 0
	for nth := range int64(60) {
		if look(time.Second, 512*mib+nth%7*2*mib, false) {
			writes++
		}
	}
	if writes > 13 {
		t.Errorf("%d publications in a minute", writes)
	}
}

func TestDevicesReadBackAndOthersAreNone(t *testing.T) {
	for _, isReady := range []bool{true, false} {
		node, page, ready, err := parseDevice(deviceName(3, 1<<30, isReady))
		if node != 3 || page != 1<<30 || ready != isReady || err != nil {
			t.Fatal(node, page, ready, err)
		}
	}
	for _, name := range []string{"", "node0-2048k", "node0-2048k-other", "node00-2048k-ready", "node0-2048k-ready-x", "gpu-0"} {
		if _, _, _, err := parseDevice(name); err == nil {
			t.Errorf("%q is a device", name)
		}
	}
}

func TestTheClaimsWordGoesOverTheClassesAndOnlyForItsRequests(t *testing.T) {
	config := func(source resourceapi.AllocationConfigSource, text string, requests ...string) resourceapi.DeviceAllocationConfiguration {
		opaque := &resourceapi.OpaqueDeviceConfiguration{Driver: Name, Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"prezero.io/v1alpha1","kind":"Loan",` + text + `}`)}}
		return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque}}
	}
	configs := []resourceapi.DeviceAllocationConfiguration{
		config(resourceapi.AllocationConfigSourceClaim, `"uid":2`, "mem"),
		config(resourceapi.AllocationConfigSourceClass, `"uid":1,"gid":1`),
		config(resourceapi.AllocationConfigSourceClaim, `"uid":3`, "other"),
	}
	found, err := parameters(configs, "mem", "mem/ready")
	if err != nil || *found.UID != 2 || *found.GID != 1 {
		t.Fatalf("%+v %v", found, err)
	}
}

func TestALoansNameFitsHoweverLongANamespaceIs(t *testing.T) {
	name := loanName(strings.Repeat("n", 63), "01234567-89ab-cdef-0123-456789abcdef", 31)
	if len(name) > 110 {
		t.Fatalf("%q has %d characters, and the daemon takes 110", name, len(name))
	}
}
