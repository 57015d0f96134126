// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

const (
	small     = 4 << 10
	plainPool = "[workers]\nmax = 1\n[agent]\nfill_max = \"64G\"\n[[pool]]\npage_size = \"4K\"\npages_per_block = 1\nready_low = 64\nready_high = 64\n"
)

// ofPlain memory is what a claim is for.
func ofPlain(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	for nth := range claim.Status.Allocation.Devices.Results {
		claim.Status.Allocation.Devices.Results[nth].Device = "node0-4k-rest"
	}
	return claim
}

// begin to prepare a claim, as a kubelet with this timeout.
func (b *bed) begin(claim *resourceapi.ResourceClaim, within time.Duration) error {
	return b.call(within, func(ctx context.Context, client drapb.DRAPluginClient) error {
		reply, err := client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: asked(claim)})
		if err != nil {
			return err
		}
		if text := reply.Claims[string(claim.UID)].GetError(); text != "" {
			return fmt.Errorf("refused: %s", text)
		}
		return nil
	})
}

// stays checks that a condition holds from now on for a while.
func (b *bed) stays(what string, is func() bool) {
	b.t.Helper()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if !is() {
			b.t.Fatalf("no longer: %s", what)
		}
	}
}

func (b *bed) healthz() (int, string) {
	client := http.Client{Timeout: time.Second}
	reply, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", b.healthPort))
	if err != nil {
		return 0, err.Error()
	}
	defer reply.Body.Close()
	text, _ := io.ReadAll(reply.Body)
	return reply.StatusCode, string(text)
}

// Promise P141.
func TestAPrepareThatIsCutOffLeavesNoLoan(t *testing.T) {
	b := startPlain(t, plainPool)
	b.ready()
	const much = 2 << 30
	used := func() uint64 {
		var about syscall.Statfs_t
		must(t, syscall.Statfs(b.run, &about))
		return (about.Blocks - about.Bfree) * uint64(about.Bsize)
	}
	before := used()
	isGone := func() bool {
		loans, err := b.agent().Loans(context.Background(), "")
		return err == nil && len(loans) == 0
	}
	big := b.api.add(ofPlain(claim("team", "big", "", much)))
	// The kubelet gives up, and the pod is deleted.
	if err := b.begin(big, 300*time.Millisecond); err == nil {
		t.Skip("this machine zeroes 2 GiB in 0.3 s")
	}
	must(t, b.unprepare(big))
	if !b.isClean() {
		t.Error("something is left at once")
	}
	b.eventually("what was zeroed for it is free", func() bool { return used() < before+(64<<20) })
	b.stays("nothing is left", b.isClean)
	// A driver that is killed while the daemon zeroes: its record names the claim of the loan.
	cut := make(chan error, 1)
	go func() { cut <- b.begin(big, 20*time.Second) }()
	b.eventually("the loan is listed while it is made", func() bool {
		loans, err := b.agent().Loans(context.Background(), "team")
		return err == nil && len(loans) == 1 && loans[0].Pending && loans[0].Path == ""
	})
	b.kill(&b.driver)
	<-cut
	b.eventually("what nobody waits for is not made", isGone)
	b.stays("nothing is lent", isGone)
	b.startDriver()
	b.ready()
	must(t, b.unprepare(big))
	if !b.isClean() {
		t.Error("something is left")
	}
	b.eventually("its memory is free", func() bool { return used() < before+(64<<20) })
}

// Promise P274 (pods): A claim that waits delays no other claim of the node and not `/healthz`;
// all devices of a claim have one deadline, within the kubelet's own; calls for one claim follow
// each other.
func TestAClaimThatWaitsHoldsUpNoOtherNorHealth(t *testing.T) {
	b := startPlain(t, plainPool)
	b.ready()
	const owned = `{"apiVersion":"prezero.io/v1alpha1","kind":"Loan","owner":"o","keep":"10m"}`
	sizes := make([]int64, 8)
	for nth := range sizes {
		sizes[nth] = small
	}
	first, second := ofPlain(claim("foe", "a", owned, sizes...)), ofPlain(claim("foe", "b", owned, sizes...))
	victim := b.api.add(ofPlain(claim("victim", "s", "", small)))
	paths, err := b.prepare(b.api.add(first))
	must(t, err)
	// As another pod of the owner's keeps them: each device of its next claim waits two seconds for these.
	for _, path := range paths {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		t.Cleanup(func() { file.Close() })
	}
	must(t, b.unprepare(first))
	b.api.add(second)
	type outcome struct {
		err  error
		took time.Duration
	}
	foes := make(chan outcome, 1)
	go func() {
		begun := time.Now()
		err := b.begin(second, 40*time.Second)
		foes <- outcome{err, time.Since(begun)}
	}()
	time.Sleep(300 * time.Millisecond)
	begun := time.Now()
	if _, err := b.prepare(victim); err != nil {
		t.Error(err)
	}
	took := time.Since(begun)
	code, text := b.healthz()
	select {
	case foe := <-foes:
		t.Fatalf("nothing was waited for: %+v", foe)
	default:
	}
	if took > time.Second {
		t.Errorf("beside a claim that waits another namespace's takes %v", took)
	}
	if code != 200 {
		t.Errorf("/healthz meanwhile: %d %s", code, text)
	}
	must(t, b.unprepare(victim))
	foe := <-foes
	must(t, foe.err)
	t.Logf("the victim's claim took %v, the foe's of 8 devices %v", took, foe.took)
	if foe.took > 10*time.Second {
		t.Errorf("8 devices wait one after the other, %v: of 32 the kubelet would never see the end", foe.took)
	}
	must(t, b.unprepare(second))
}

// Promise P275 (pods): Connections to `/healthz`, however many, cost the driver no memory and the
// kubelet's probe no answer.
func TestConnectionsToHealthzCostNoMemoryAndDelayNoProbe(t *testing.T) {
	const crowd = 12_000
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	limit.Cur = max(limit.Cur, crowd+1000)
	limit.Max = max(limit.Max, limit.Cur)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		skip(t, "this user may not open 12,000 connections")
	}
	b := startPlain(t, plainPool)
	b.ready()
	resident := func() int {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(b.driver.Process.Pid), "status"))
		must(t, err)
		_, rest, _ := strings.Cut(string(text), "VmRSS:")
		kib, err := strconv.Atoi(strings.Fields(rest)[0])
		must(t, err)
		return kib >> 10
	}
	b.eventually("healthz answers", func() bool { code, _ := b.healthz(); return code == 200 })
	atRest, most, missed := resident(), 0, 0
	for nth := range crowd {
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", b.healthPort), 3*time.Second)
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		// Half of them ask, and half do not say the end of what they ask.
		request := "GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 3500)
		if nth%2 == 0 {
			request += "\r\n\r\n"
		}
		io.WriteString(conn, request)
		if nth%1500 == 1499 {
			most = max(most, resident())
			if code, text := b.healthz(); code != 200 {
				t.Log(code, text)
				missed++
			}
		}
	}
	t.Logf("%d MiB at rest, at most %d beside %d connections; %d of %d probes missed", atRest, most, crowd, missed, crowd/1500)
	if most > atRest+32 {
		t.Errorf("%d MiB at rest and %d beside %d connections: its pod has 128", atRest, most, crowd)
	}
	if missed > 0 {
		t.Errorf("%d probes were not answered in a second", missed)
	}
}

// Promise P276 (pods): A namespace that is deleted and made anew is another scope of the same
// quota; prepared claims stay as they were.
func TestANamespaceMadeAnewIsAnotherScopeOfTheSameQuota(t *testing.T) {
	b := startPlain(t, strings.Replace(plainPool, "[agent]\n", "[agent]\nquota_of = { team = \"12K\" }\n", 1))
	b.ready()
	const owned = `{"apiVersion":"prezero.io/v1alpha1","kind":"Loan","owner":"cache","keep":"10m"}`
	made := func(uid string) *resourceapi.ResourceClaim {
		one := ofPlain(claim("team", "cache", owned, small))
		one.UID = types.UID(uid)
		return b.api.add(one)
	}
	lends := func(one *resourceapi.ResourceClaim) (name string) {
		t.Helper()
		_, err := b.prepare(one)
		must(t, err)
		loans, err := b.agent().Loans(context.Background(), "team@")
		must(t, err)
		for _, loan := range loans {
			if strings.Contains(loan.Name, "/k8s."+string(one.UID)+".") {
				name = loan.Name
			}
		}
		return name
	}
	first := made("first")
	name := lends(first)
	if want := b.api.scope("team") + "/k8s.first.0"; name != want {
		t.Fatalf("lent as %q, not %q", name, want)
	}
	b.api.makeAnew("team")
	// A prepared claim keeps its loans when its namespace is deleted.
	if again := lends(first); again != name {
		t.Fatalf("prepared again it is %q and was %q", again, name)
	}
	second := made("second")
	if other := lends(second); other != b.api.scope("team")+"/k8s.second.0" || strings.Split(other, "/")[0] == strings.Split(name, "/")[0] {
		t.Fatalf("the new namespace's is %q, the old one's %q", other, name)
	}
	// Both count in the quota that the operator gave the name.
	if _, err := b.prepare(b.api.add(ofPlain(claim("team", "more", "", 2*small)))); err == nil || !strings.Contains(err.Error(), `quota of namespace "team"`) {
		t.Errorf("a namespace made anew has a second quota: %v", err)
	}
	must(t, b.unprepare(second))
	must(t, b.unprepare(first))
}

// Calls for one claim wait for each other, those for others do not.
// Promise P274.
func TestCallsForOneClaimAtATimeAreOneAfterTheOther(t *testing.T) {
	b := startPlain(t, plainPool)
	b.ready()
	one := b.api.add(ofPlain(claim("team", "one", "", small, small)))
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if err := b.begin(one, 20*time.Second); err != nil {
				t.Error(err)
			}
		})
		calls.Go(func() {
			if err := b.unprepare(one); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	must(t, b.unprepare(one))
	if !b.isClean() {
		t.Error("something is left")
	}
}
