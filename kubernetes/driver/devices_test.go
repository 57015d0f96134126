// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"testing"

	"prezero/agent"
)

const mib = 1 << 20

// at is a supply of total bytes, including the ready ones.
func at(total int64, ready ...agent.ReadyBlocks) agent.Supply {
	s := agent.Supply{Node: 1, PageBytes: 2 * mib, TotalBytes: total, ReadyBlocks: ready}
	for _, of := range ready {
		s.BlockBytes = max(s.BlockBytes, of.BlockBytes)
		s.ReadyBytes += of.ReadyBytes
	}
	return s
}

func blocks(bytes, count int64) agent.ReadyBlocks {
	return agent.ReadyBlocks{BlockBytes: bytes, ReadyBytes: bytes * count}
}

// ready in blocks of this many bytes, as a device is called.
func ready(block int64) string { return kind{1, 2 * mib, true, block}.name() }

var restOf1 = kind{node: 1, page: 2 * mib}.name()

// published is each device's capacity.
func published(all []stock) map[string]int64 {
	found := map[string]int64{}
	for _, device := range devices(all, false, false) {
		capacity := device.Capacity[Capacity].Value
		found[device.Name] = capacity.Value()
	}
	return found
}

func sum(all map[string]int64) (bytes int64) {
	for _, n := range all {
		bytes += n
	}
	return bytes
}

// Promise P143.
func TestTheSumOfAllDevicesIsTheSameBeforeAndAfterALoan(t *testing.T) {
	// 16 MiB of ready memory move from the daemon's stock to claims: nothing changes for the scheduler.
	before := published(stocks([]agent.Supply{at(256*mib, blocks(8*mib, 8), blocks(32*mib, 1))}, nil, 0))
	after := published(stocks([]agent.Supply{at(256*mib, blocks(8*mib, 6))}, map[string]int64{ready(8 * mib): 16 * mib, ready(32 * mib): 32 * mib}, 0))
	if before[ready(8*mib)] != 64*mib || before[ready(32*mib)] != 32*mib || before[restOf1] != 160*mib || sum(before) != 256*mib {
		t.Fatal(before)
	}
	for name, bytes := range before {
		if after[name] != bytes {
			t.Errorf("%s: %d and then %d", name, bytes, after[name])
		}
	}
	// Neither is a last block or a last page lost.
	for _, of := range []struct {
		supply agent.Supply
		ready  int64
	}{
		{at(8*mib, blocks(8*mib, 1)), 8 * mib},
		{at(10*mib, blocks(8*mib, 1)), 8 * mib},
		{at(256 * mib), 0},
	} {
		all := published(stocks([]agent.Supply{of.supply}, nil, 0))
		if all[ready(8*mib)] != of.ready || sum(all) != of.supply.TotalBytes {
			t.Errorf("%+v: %v", of.supply, all)
		}
	}
}

// What the scheduler allocates by the policy of a device is what one file can be.
// Promise P217.
func TestReadyPagesAreTakenByBlocksAndOthersByPages(t *testing.T) {
	all := devices(stocks([]agent.Supply{at(256*mib, blocks(0, 0), blocks(8*mib, 8))}, nil, 0), true, false)
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	for _, device := range all {
		capacity := device.Capacity[Capacity]
		valid := capacity.RequestPolicy.ValidRange
		if len(device.Taints) != 1 || *device.Attributes["blockBytes"].IntValue != 8*mib {
			t.Errorf("%+v", device)
		}
		if device.Name == restOf1 {
			if valid.Min.Value() != 2*mib || valid.Step.Value() != 2*mib || valid.Max != nil {
				t.Errorf("%+v", valid)
			}
		} else if valid.Min.Value() != 8*mib || valid.Max == nil || valid.Max.Value() != 8*mib || valid.Step != nil {
			t.Errorf("%+v", valid)
		}
	}
	// A kernel that keeps zeroed pages has them for a file of any size.
	any := stocks([]agent.Supply{at(256*mib, agent.ReadyBlocks{ReadyBytes: 100 * mib})}, nil, 0)
	valid := devices(any, false, false)[0].Capacity[Capacity].RequestPolicy.ValidRange
	if all := published(any); all[ready(0)] != 100*mib || valid.Max != nil || valid.Step.Value() != 2*mib {
		t.Errorf("%v %+v", all, valid)
	}
}

func TestPagesWantedForLargerClaimsAreNotPublishedAsReady(t *testing.T) {
	supply := []agent.Supply{at(256*mib, blocks(8*mib, 8), blocks(32*mib, 6))}
	if all := published(stocks(supply, nil, 0)); all[restOf1] != 0 || sum(all) != 256*mib {
		t.Fatal(all)
	}
	all := published(stocks(supply, nil, 70*mib))
	if all[restOf1] < 70*mib || all[ready(8*mib)] != 64*mib || sum(all) != 256*mib {
		t.Fatal(all)
	}
	if all := published(stocks(supply, nil, 1<<40)); all[restOf1] != 256*mib || len(all) != 1 {
		t.Fatal(all)
	}
}

// A pool that learns its sizes has many.
func TestLargestSizesAreDevicesAndClaimedSizesAlways(t *testing.T) {
	var of []agent.ReadyBlocks
	for nth := range int64(20) {
		of = append(of, blocks((nth+1)*2*mib, 1+nth%3))
	}
	claimed := map[string]int64{ready(2 * mib): 2 * mib, ready(1000 * mib): 1000 * mib}
	all := published(stocks([]agent.Supply{at(4096*mib, of...)}, claimed, 0))
	if len(all) != most+1 || sum(all) != 4096*mib || all[ready(2*mib)] != 4*mib || all[ready(1000*mib)] != 1000*mib {
		t.Fatal(all)
	}
	if all[ready(36*mib)] == 0 || all[ready(4*mib)] != 0 {
		t.Fatal(all)
	}
}

func TestWhereTheClusterCountsClaimsADeviceSaysWhichPagesItTakes(t *testing.T) {
	supply := at(256<<30, blocks(8<<30, 8))
	supply.PageBytes = 1 << 30
	all := devices(stocks([]agent.Supply{supply}, nil, 0), false, true)
	for _, device := range all {
		mapping := device.NodeAllocatableResources["hugepages-1Gi"].Mapping
		if len(device.NodeAllocatableResources) != 1 || mapping == nil || *mapping.CapacityKey != Capacity || mapping.CapacityMultiplier.Value() != 1 {
			t.Errorf("%+v", device.NodeAllocatableResources)
		}
	}
	if len(all) != 2 || devices(stocks([]agent.Supply{supply}, nil, 0), false, false)[0].NodeAllocatableResources != nil {
		t.Errorf("%+v", all)
	}
}

func TestDevicesReadBackAndOthersAreNone(t *testing.T) {
	for _, one := range []kind{{node: 3, page: 1 << 30}, {3, 1 << 30, true, 0}, {0, 2 * mib, true, 64 * mib}} {
		if found, err := parseDevice(one.name()); found != one || err != nil {
			t.Fatal(found, err)
		}
	}
	for _, name := range []string{
		"", "-", "---", "node0-2048k", "node0-2048k-other", "node00-2048k-ready", "node0-2048k-ready-x", "gpu-0", "node0-2048k-rest-64k",
		"node0-2048k-ready-", "node0-2048k-ready-0k", "node0-2048k-ready-64", "node0-2048k-ready-+64k", "node-1-2048k-ready", "node0-0k-rest",
		"node0-99999999999999999999k-ready", "node0-9007199254740993k-rest", "node9999999999-2048k-rest", "node0-2048k-ready-64k-64k", "node0-2048k-ready\x00",
		"node٠-2048k-rest",
	} {
		if found, err := parseDevice(name); err == nil {
			t.Errorf("%q is a device: %+v", name, found)
		}
	}
}
