// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"prezero/agent"
)

// ready bytes that the driver was told of when a claim's loan was made.
func (b *bed) lentReady(claim *resourceapi.ResourceClaim) (ready int64) {
	b.t.Helper()
	log, err := os.ReadFile(b.path("driver.log"))
	must(b.t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, `"lent"`) && strings.Contains(line, fmt.Sprintf("name=\"%s/k8s.%s.0\"", b.api.scope(claim.Namespace), claim.UID)) {
			_, text, _ := strings.Cut(line, " ready=")
			if _, err := fmt.Sscan(text, &ready); err != nil {
				b.t.Fatal(err, line)
			}
			return ready
		}
	}
	b.t.Fatalf("nothing was lent to %s", claim.Name)
	return 0
}

// What the scheduler may promise by the policies of the devices, claims find.
// Promise P217 (pods): What the scheduler may give away as ready a claim finds ready, all of it in
// its one file.
func TestPublishedReadyPagesAreReadyInTheClaimsFile(t *testing.T) {
	b := start(t, pool+"[[pool]]\npage_size = \"2M\"\npages_per_block = 4\nready_low = 2\nready_high = 4\n")
	b.ready()
	small, large := "node0-2048k-ready-4096k", "node0-2048k-ready-8192k"
	value := func(name string) int64 {
		capacity := b.api.devices()[name].Capacity["memory"].Value
		return capacity.Value()
	}
	b.eventually("both sizes are published", func() bool { return value(small) == 8*page && value(large) == 4*page })
	nth := 0
	for _, name := range []string{large, small} {
		// All that the scheduler may give away, at once.
		device := b.api.devices()[name]
		policy := device.Capacity["memory"].RequestPolicy.ValidRange
		if policy.Max == nil || policy.Max.Cmp(*policy.Min) != 0 {
			t.Fatalf("%s gives away any of %+v", name, policy)
		}
		for left := value(name); left >= policy.Min.Value(); left -= policy.Min.Value() {
			nth++
			one := claim("a", fmt.Sprintf("c%d", nth), "", policy.Min.Value())
			one.Status.Allocation.Devices.Results[0].Device = name
			b.api.add(one)
			paths, err := b.prepare(one)
			must(t, err)
			holds(t, paths[0], 0)
			if ready := b.lentReady(one); ready != policy.Min.Value() {
				t.Errorf("%s: %d of %d bytes were ready", name, ready, policy.Min.Value())
			}
		}
	}
	if nth != 5 {
		t.Errorf("%d claims had all that was ready", nth)
	}
	// Claims stay counted on their devices, however much of them is ready again.
	b.eventually("the pools are full again", func() bool { return value(small) == 16*page && value(large) == 8*page })
	// A claim larger than any block is the rest's, and whole.
	wide := b.api.add(claim("a", "wide", "", 6*page))
	paths, err := b.prepare(wide)
	must(t, err)
	holds(t, paths[0], 0)
}

// A daemon with blocks that come and go as fast as they can.
// Promise P143.
func TestAStormOfChangesIsAFewWritesAndItsEndIsPublished(t *testing.T) {
	const long = 30 * time.Second
	// A twentieth of the driver's own interval, for a twentieth of its minutes.
	b := start(t, pool, "--publish-interval", "3750ms")
	b.ready()
	b.eventually("devices are published", func() bool { return len(b.api.devices()) > 0 })
	writes := func() int {
		b.api.mu.Lock()
		defer b.api.mu.Unlock()
		return b.api.writes
	}
	before, flaps, begun := writes(), 0, time.Now()
	name := func(nth int) string { return fmt.Sprintf("flap/%d", nth) }
	for ; time.Since(begun) < long; flaps++ {
		// Some of them find nothing: the pool is refilled meanwhile, or not.
		for nth := range 4 {
			b.agent().Lend(context.Background(), agent.Lend{Name: name(nth), Bytes: 2 * page, PageBytes: page})
		}
		for nth := range 4 {
			must(t, b.agent().Return(context.Background(), name(nth)))
		}
	}
	made := writes() - before
	t.Logf("%d writes of slices for %d times all and nothing in %s", made, flaps, time.Since(begun))
	// One for each interval of at least four fifths, and two at once in the beginning.
	if most := int(time.Since(begun)/(3*time.Second)) + 2; made > most {
		t.Errorf("%d writes of slices, and at most %d are to be", made, most)
	}
	if flaps < int(long/time.Second) || made < 2 {
		t.Errorf("%d writes for %d changes: this shows nothing", made, flaps)
	}
	b.eventually("what is ready in the end is published", func() bool {
		capacity := b.api.devices()["node0-2048k-ready-4096k"].Capacity["memory"].Value
		return capacity.Value() == 8*page
	})
}

// fields that all devices have, as the API server shows them, each with what it says of the pages.
func (a *api) fields(field string) (said []string, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all = len(a.slices) > 0
	for _, slice := range a.slices {
		spec := a.shown(slice).(map[string]any)["spec"].(map[string]any)
		devices, _ := spec["devices"].([]any)
		all = all && len(devices) > 0
		for _, device := range devices {
			value, is := device.(map[string]any)[field].(map[string]any)
			all = all && is
			if is {
				text, _ := json.Marshal(value)
				said = append(said, string(text))
			}
		}
	}
	return said, all
}

// Promise P228 (pods): Which huge pages of the node a claim takes is published by the name that
// the API server has for it, from 1.36 or from 1.37, and read back as it was written; a server
// that is updated is noticed.
func TestDevicesNameTheirPagesForTheServersVersion(t *testing.T) {
	b := start(t, pool, "--node-allocatable", "--reconcile", "200ms")
	b.ready()
	says := func(field, want string) func() bool {
		return func() bool {
			said, all := b.api.fields(field)
			for _, one := range said {
				if one != want {
					t.Fatalf("%s: %s", field, one)
				}
			}
			return all
		}
	}
	const before, now = "nodeAllocatableResourceMappings", "nodeAllocatableResources"
	b.eventually("devices say it as 1.36 calls it", says(before, `{"hugepages-2Mi":{"capacityKey":"memory"}}`))
	b.api.mu.Lock()
	b.api.minor = 37
	b.api.mu.Unlock()
	if said, _ := b.api.fields(before); len(said) > 0 {
		t.Fatal(said)
	}
	// Its pod has it started again.
	ended := make(chan error)
	go func() { ended <- b.driver.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Fatal("it ended as if all were well")
		}
	case <-time.After(timeout):
		t.Fatal("a driver whose API server was updated goes on")
	}
	b.driver = nil
	b.startDriver()
	b.ready()
	b.eventually("devices say it as 1.37 calls it", says(now, `{"hugepages-2Mi":{"mapping":{"capacityKey":"memory","capacityMultiplier":"1"}}}`))
	// It reads what it has written, and so is content.
	writes := func() int {
		b.api.mu.Lock()
		defer b.api.mu.Unlock()
		return b.api.writes
	}
	b.eventually("all that is ready is published", func() bool {
		capacity := b.api.devices()["node0-2048k-ready-4096k"].Capacity["memory"].Value
		return capacity.Value() == 8*page
	})
	made := writes()
	time.Sleep(3 * time.Second)
	if again := writes() - made; again > 0 {
		t.Errorf("%d writes while nothing changed", again)
	}
	// And changes reach it.
	b.kill(&b.daemon)
	b.eventually("a taint while the daemon is down", func() bool {
		for _, device := range b.api.devices() {
			if len(device.Taints) != 1 {
				return false
			}
		}
		_, all := b.api.fields(now)
		return all
	})
	b.startDaemon()
	// Turned off it goes, though the driver's modules do not know the field.
	b.kill(&b.driver)
	b.arguments = nil
	b.startDriver()
	b.ready()
	b.eventually("devices say it no longer", func() bool {
		said, _ := b.api.fields(now)
		return len(said) == 0 && len(b.api.devices()) > 0
	})
}

// Promise P219 (pods): A driver starts over anything that a crash left in its files, publishes
// again what a kubelet wipes, and ends where the kubelet cannot find it.
func TestDevicesThatAStartingKubeletWipesAreSoonBack(t *testing.T) {
	b := start(t, pool)
	b.ready()
	published := func() bool { return len(b.api.devices()) > 0 }
	b.eventually("devices are published", published)
	for range 2 {
		b.api.wipe()
		// Something to publish at once, while the published state counts for there.
		one := b.api.add(claim("a", "one", "", 2*page))
		_, err := b.prepare(one)
		must(t, err)
		b.eventually("devices are published again", published)
		must(t, b.unprepare(one))
	}
}
