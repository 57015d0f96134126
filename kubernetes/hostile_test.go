// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"prezero-dra/driver"
)

func of(claim *resourceapi.ResourceClaim, changes ...func(*resourceapi.DeviceRequestAllocationResult)) *resourceapi.ResourceClaim {
	for nth, change := range changes {
		change(&claim.Status.Allocation.Devices.Results[nth])
	}
	return claim
}

func called(request string) func(*resourceapi.DeviceRequestAllocationResult) {
	return func(result *resourceapi.DeviceRequestAllocationResult) { result.Request = request }
}

func on(device string) func(*resourceapi.DeviceRequestAllocationResult) {
	return func(result *resourceapi.DeviceRequestAllocationResult) { result.Device = device }
}

func wanting(quantity string) func(*resourceapi.DeviceRequestAllocationResult) {
	return func(result *resourceapi.DeviceRequestAllocationResult) {
		result.ConsumedCapacity[driver.Capacity] = resource.MustParse(quantity)
	}
}

func (b *bed) holdsNothing(what string) {
	b.t.Helper()
	if loans, err := b.agent().Loans(context.Background(), ""); err != nil || len(loans) > 0 {
		b.t.Errorf("%s: left %v %v", what, loans, err)
	}
}

// Promise P218 (pods): A bad claim is refused with a reason, and no other loan is touched; a disk
// that is full or read-only refuses it, too.
// Promise P220.
func TestBadClaimIsRefusedWithAReasonAndOthersAreUntouched(t *testing.T) {
	b := start(t, pool)
	b.ready()
	loan := func(words string) string {
		return `{"apiVersion":"prezero.io/v1alpha1","kind":"Loan"` + words + `}`
	}
	other := b.api.add(claim("other", "stays", "", page))
	paths, err := b.prepare(other)
	must(t, err)
	soil(t, paths[0], 9)
	mem := func(parameters string) *resourceapi.ResourceClaim { return claim("evil", "c", parameters, page) }
	two := func() *resourceapi.ResourceClaim { return claim("evil", "c", "", page, page) }
	named := func(uid types.UID) *resourceapi.ResourceClaim {
		one := claim("evil", "u", "", page)
		one.UID = uid
		return one
	}
	ofTemplate := func(one *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
		one.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: "memory"}
		return one
	}
	ofPod := func(one *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
		one.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}}
		return one
	}
	for _, c := range []struct {
		claim *resourceapi.ResourceClaim
		why   string
	}{
		// The owner of the content, and the user of the file.
		{mem(loan(`,"owner":"other/stays","keep":"1m"`)), "owner"},
		{mem(loan(`,"owner":"../other/stays","keep":"1m"`)), "owner"},
		{mem(loan(`,"owner":"/etc/passwd","keep":"1m"`)), "owner"},
		{mem(loan(`,"owner":"..","keep":"1m"`)), "owner"},
		{mem(loan(`,"owner":"a\u0000b","keep":"1m"`)), "owner"},
		{mem(loan(`,"owner":"","keep":"1m"`)), "owner"},
		{mem(loan(`,"owner":["a"],"keep":"1m"`)), "owner"},
		{mem(loan(`,"owner":"a.mem_0","keep":"1m"`)), "owner"},
		{mem(loan(`,"owner":"` + strings.Repeat("o", 33) + `","keep":"1m"`)), "owner"},
		{mem(loan(`,"owner":"a"`)), "keep"},
		{mem(loan(`,"owner":"a","keep":"0s"`)), "keep"},
		{mem(loan(`,"owner":"a","keep":"-1m"`)), "keep"},
		{mem(loan(`,"owner":"a","keep":"1500ms"`)), "keep"},
		{mem(loan(`,"owner":"a","keep":"25h"`)), "keep_seconds_max"},
		{mem(loan(`,"owner":"a","keep":"2000000h"`)), "keep_seconds_max"},
		{mem(loan(`,"owner":"a","keep":60`)), "keep"},
		{ofTemplate(mem(loan(`,"owner":"a","keep":"1m"`))), "template"},
		{ofPod(mem(loan(`,"owner":"a","keep":"1m"`))), "template"},
		{mem(loan(`,"name":"other/uid-other-stays.0"`)), "name"},
		// Neither how memory is cleared nor a file's mode is the claim's.
		{mem(loan(`,"recycle":"in-place"`)), "recycle"},
		{mem(loan(`,"mode":"0666"`)), "mode"},
		{mem(loan(`,"uid":-1`)), "uid"},
		{mem(loan(`,"uid":4294967295`)), "nobody"},
		{mem(loan(`,"gid":4294967296`)), "gid"},
		{mem(loan(`,"uid":1e99`)), "uid"},
		{mem(loan(`,"uid":"0"`)), "uid"},
		{mem(`null`), "parameters"},
		{mem(`[]`), "parameters"},
		{mem(strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)), "parameters"},
		{mem(loan(`,"\u0000\ud800💾":1`)), "parameters"},
		// How much.
		{of(mem(""), wanting("9223372036854775807")), "no node has"},
		{of(mem(""), wanting("1e30")), "no node has"},
		{of(mem(""), wanting("-2Mi")), "capacity.requests.memory"},
		{of(mem(""), wanting("1500m")), "whole number"},
		{of(mem(""), wanting("3Mi")), "whole number"},
		// From where.
		{of(mem(""), on("node7-2048k-rest")), "node"},
		{of(mem(""), on("node0-1024k-rest")), ""},
		{of(mem(""), on("../node0-2048k-rest")), "no device"},
		// Where to.
		{of(mem(""), called("../../etc")), "letters"},
		{of(mem(""), called("")), "letters"},
		{of(mem(""), called("mém")), "letters"},
		{of(two(), called("mem"), called("mem-bytes")), "PREZERO_MEM_BYTES"},
		{of(claim("evil", "c", "", page, page, page), called("mem"), called("mem"), called("mem-2")), "PREZERO_MEM_2"},
		// The claim of the loans: a claim of that UID would unprepare another one.
		{named("uid-other-stays.0"), "no UID"},
		{named("../../../../x"), "no UID"},
	} {
		b.api.add(c.claim)
		if _, err := b.prepare(c.claim); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.why, err)
		}
		must(t, b.unprepare(c.claim))
		if loans, err := b.agent().Loans(context.Background(), "evil"); err != nil || len(loans) > 0 {
			t.Errorf("%s: left %v %v", c.why, loans, err)
		}
	}
	thief := named("uid-other-stays")
	thief.Namespace = "evil"
	must(t, b.unprepare(thief))
	holds(t, paths[0], 9)
	// All of that has left nothing that a later claim or the scheduler could find.
	must(t, b.unprepare(other))
	if !b.isClean() {
		t.Fatal("something is left")
	}
	b.eventually("no capacity is made up", func() bool {
		var sum int64
		for _, device := range b.api.devices() {
			capacity := device.Capacity["memory"].Value
			sum += capacity.Value()
		}
		supplies, err := b.agent().Supply(context.Background())
		return err == nil && sum == supplies[0].TotalBytes
	})
}

// Promise P218.
func TestAFullOrReadOnlyDiskRefusesAClaimThatThenHoldsNothing(t *testing.T) {
	b := start(t, pool)
	b.ready()
	cdi := b.path("cdi")
	must(t, syscall.Mount("tmpfs", cdi, "tmpfs", 0, "size=8k"))
	t.Cleanup(func() { syscall.Unmount(cdi, syscall.MNT_DETACH) })
	one, two := b.api.add(claim("a", "one", "", page)), b.api.add(claim("a", "two", "", 2*page, page))
	before, err := b.prepare(one)
	must(t, err)
	soil(t, before[0], 1)
	stays := func(what string) {
		t.Helper()
		if _, err := b.prepare(two); err == nil {
			t.Fatalf("%s: a claim is prepared without a spec", what)
		} else {
			t.Log(what, err)
		}
		loans, err := b.agent().Loans(context.Background(), b.api.scope("a")+"/k8s.uid-a-two")
		left, _ := filepath.Glob(filepath.Join(cdi, "*uid-a-two*"))
		if err != nil || len(loans)+len(left) > 0 {
			t.Errorf("%s: left %v %v %v", what, loans, left, err)
		}
		again, err := b.mounts(one)
		must(t, err)
		holds(t, again[0], 1)
	}
	full := filepath.Join(cdi, "full")
	for size := 64 << 10; size > 0; size /= 2 {
		file, err := os.OpenFile(full, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		must(t, err)
		file.Write(make([]byte, size))
		file.Close()
	}
	stays("full")
	must(t, os.Remove(full))
	must(t, syscall.Mount("", cdi, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	stays("read-only")
	if err := b.unprepare(one); err == nil {
		t.Error("unprepared, and its spec is there")
	}
	must(t, syscall.Mount("", cdi, "", syscall.MS_REMOUNT, ""))
	must(t, b.unprepare(one))
	paths, err := b.prepare(two)
	must(t, err)
	holds(t, paths[0], 0)
	must(t, b.unprepare(two))
	b.holdsNothing("in the end")
}

// Promise P219.
func TestRemainsOfACrashDoNotStopTheDriver(t *testing.T) {
	b := start(t, pool)
	b.ready()
	stays, broken := b.api.add(claim("a", "stays", "", page)), b.api.add(claim("a", "broken", "", page))
	for _, one := range []*resourceapi.ResourceClaim{stays, broken} {
		paths, err := b.prepare(one)
		must(t, err)
		soil(t, paths[0], 5)
	}
	b.kill(&b.driver)
	records := b.path("kubelet/plugins/prezero.io/claims")
	// As a loss of power leaves a file with its name on disk before its content, a full disk another.
	must(t, os.WriteFile(filepath.Join(records, string(broken.UID)+".json"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(records, "half.json.half"), []byte("{"), 0o600))
	must(t, os.WriteFile(filepath.Join(records, "lies.json"), []byte(`{"namespace":"a","name":"stays","uid":"uid-a-stays","bytes":{"node0-2048k-ready-4096k":-1}}`), 0o600))
	// An unowned spec, and one of another driver.
	stale, others := b.path("cdi/prezero.io-stale.json"), b.path("cdi/gpu.json")
	for _, path := range []string{stale, others} {
		must(t, os.WriteFile(path, []byte("{}"), 0o600))
	}
	b.startDriver()
	b.ready()
	for _, one := range []*resourceapi.ResourceClaim{stays, broken} {
		paths, err := b.prepare(one)
		must(t, err)
		holds(t, paths[0], 5)
		must(t, b.unprepare(one))
	}
	b.holdsNothing("in the end")
	if _, err := os.Lstat(stale); err == nil {
		t.Error("a spec without a claim stays")
	}
	if _, err := os.Lstat(others); err != nil {
		t.Error("another driver's spec is gone")
	}
}

// Promise P219.
func TestDriverWithoutItsSocketsEnds(t *testing.T) {
	b := start(t, pool)
	for _, gone := range []string{"kubelet/plugins_registry", "kubelet/plugins/prezero.io/dra.sock"} {
		b.ready()
		one := b.api.add(claim("a", "c", "", page))
		paths, err := b.prepare(one)
		must(t, err)
		soil(t, paths[0], 3)
		must(t, os.RemoveAll(b.path(gone)))
		ended := make(chan error, 1)
		go func(process func() error) { ended <- process() }(b.driver.Wait)
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s is gone, and the driver ended as if nothing was wrong", gone)
			}
		case <-time.After(timeout):
			t.Fatalf("%s is gone, and the driver goes on", gone)
		}
		b.driver = nil
		must(t, os.MkdirAll(b.path("kubelet/plugins_registry"), 0o755))
		b.startDriver()
		b.ready()
		again, err := b.prepare(one)
		must(t, err)
		if fmt.Sprint(again) != fmt.Sprint(paths) {
			t.Errorf("%v and then %v", paths, again)
		}
		holds(t, again[0], 3)
		must(t, b.unprepare(one))
	}
}
