// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

const pool = "[[pool]]\npage_size = \"2M\"\npages_per_block = 2\nready_low = 4\nready_high = 8\n"

// file of a container, as it maps it: all of it, without a page of its own.
func mapped(t *testing.T, path string) []byte {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	info, err := file.Stat()
	must(t, err)
	if blocks := info.Sys().(*syscall.Stat_t).Blocks * 512; blocks != info.Size() {
		t.Fatalf("%s has %d of %d bytes: a container without a hugetlb limit could not map it", path, blocks, info.Size())
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(t, err)
	return memory
}

func soil(t *testing.T, path string, value byte) {
	memory := mapped(t, path)
	defer syscall.Munmap(memory)
	for i := range memory {
		memory[i] = value
	}
}

func holds(t *testing.T, path string, value byte) {
	t.Helper()
	memory := mapped(t, path)
	defer syscall.Munmap(memory)
	if !bytes.Equal(memory, bytes.Repeat([]byte{value}, len(memory))) {
		t.Fatalf("%s is not all %#x", path, value)
	}
}

// nothing is left of any claim.
func (b *bed) isClean() bool {
	loans, err := b.agent().Loans(context.Background(), "")
	specs, _ := filepath.Glob(b.path("cdi/*"))
	records, _ := filepath.Glob(b.path("kubelet/plugins/prezero.io/claims/*"))
	return err == nil && len(loans)+len(specs)+len(records) == 0
}

func (b *bed) ready() {
	b.t.Helper()
	b.eventually("the kubelet registers the driver", func() bool { return b.register() == nil })
	b.eventually("the daemon answers", func() bool { _, err := b.agent().Supply(context.Background()); return err == nil })
}

// Promise P140 (pods): A claim is a file of zeros with every page, of the user that it names,
// until it is unprepared; prepared again it is the same.
func TestAClaimIsAFileOfZerosUntilItIsUnprepared(t *testing.T) {
	b := start(t, pool)
	b.ready()
	one := b.api.add(claim("team-a", "one", `{"apiVersion":"prezero.io/v1alpha1","kind":"Loan","uid":1000,"gid":2000}`, 3*page, page))
	paths, err := b.prepare(one)
	must(t, err)
	if len(paths) != 2 {
		t.Fatalf("%d files for two requests", len(paths))
	}
	info, err := os.Stat(paths[0])
	must(t, err)
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != 1000 || stat.Gid != 2000 || info.Mode().Perm() != 0o600 {
		t.Fatalf("%+v", stat)
	}
	for nth, path := range paths {
		holds(t, path, 0)
		soil(t, path, byte(nth+1))
	}
	text, err := os.ReadFile(b.path("cdi/prezero.io-" + string(one.UID) + ".json"))
	must(t, err)
	for _, part := range []string{`"PREZERO_MEM_0=/dev/prezero/mem-0"`, fmt.Sprintf(`"PREZERO_MEM_0_BYTES=%d"`, 3*page), `"noexec"`, `"nosuid"`, `"nodev"`, `"kind":"prezero.io/memory"`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
	again, err := b.prepare(one)
	must(t, err)
	if !slices.Equal(again, paths) {
		t.Fatalf("prepared again as %v instead of %v", again, paths)
	}
	holds(t, paths[1], 2)
	must(t, b.unprepare(one))
	must(t, b.unprepare(one))
	if !b.isClean() {
		t.Fatal("something is left")
	}
	must(t, b.unprepare(claim("team-a", "never", "", page)))
	two := b.api.add(claim("team-b", "two", "", 4*page))
	paths, err = b.prepare(two)
	must(t, err)
	holds(t, paths[0], 0)
	must(t, b.unprepare(two))
}

// Promise P142 (pods): What a claim cannot have is refused by a reason and holds nothing
// meanwhile; a claim that is gone without a word gives its loans back, and loans of other agents
// are left alone.
func TestImpossibleClaimIsRefusedWithAReasonAndHoldsNothing(t *testing.T) {
	b := start(t, pool+"[agent]\nquota_of = { small = \"4M\" }\n")
	b.ready()
	for _, c := range []struct {
		claim *resourceapi.ResourceClaim
		why   string
	}{
		{claim("small", "much", "", page, 2*page), `quota of namespace "small" exceeded`},
		{claim("large", "much", "", page, 4000*page), "not enough huge pages"},
		{claim("a", "word", `{"apiVersion":"prezero.io/v1alpha1","kind":"Loan","colour":"red"}`, page), "colour"},
		{claim("a", "kind", `{"apiVersion":"prezero.io/v1","kind":"Loan"}`, page), "v1alpha1"},
		{claim("a", "none", "", 0), "capacity.requests.memory"},
	} {
		b.api.add(c.claim)
		if _, err := b.prepare(c.claim); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.why, err)
		}
		if loans, err := b.agent().Loans(context.Background(), ""); err != nil || len(loans) > 0 {
			t.Errorf("%s: left %v %v", c.why, loans, err)
		}
		must(t, b.unprepare(c.claim))
	}
	if !b.isClean() {
		t.Fatal("something is left")
	}
}

// Promise P142.
func TestLoanWithoutItsClaimIsReturnedAndOthersAreNot(t *testing.T) {
	b := start(t, pool, "--grace", "300ms", "--reconcile", "100ms")
	b.ready()
	gone, stays := b.api.add(claim("a", "gone", "", page)), b.api.add(claim("a", "stays", "", page))
	for _, one := range []*resourceapi.ResourceClaim{gone, stays} {
		_, err := b.prepare(one)
		must(t, err)
	}
	// Another agent's loan must stay untouched here.
	must(t, exec.Command(b.binary, "lend", "2M", "--name", "other/1", "--socket", b.path("socket")).Run())
	b.kill(&b.driver)
	b.api.forget(gone)
	// A claim of that name again is another claim.
	again := claim("a", "gone", "", page)
	again.UID = "another"
	b.api.add(again)
	b.startDriver()
	names := func() (names []string) {
		loans, _ := b.agent().Loans(context.Background(), "")
		for _, loan := range loans {
			names = append(names, loan.Name)
		}
		return names
	}
	left := []string{b.api.scope("a") + "/k8s.uid-a-stays.0", "other/1"}
	b.eventually("what is gone is returned", func() bool { return slices.Equal(names(), left) })
	time.Sleep(time.Second)
	if !slices.Equal(names(), left) {
		t.Fatalf("%v", names())
	}
	b.ready()
	must(t, b.unprepare(stays))
	must(t, exec.Command(b.binary, "return", "other/1", "--socket", b.path("socket")).Run())
}

// Promise P143.
func TestReadyPagesArePublishedAndAMissingDaemonIsTainted(t *testing.T) {
	b := start(t, pool)
	b.ready()
	sum := func() (ready, rest int64) {
		for name, device := range b.api.devices() {
			capacity := device.Capacity["memory"].Value
			if strings.Contains(name, "-ready-") {
				ready += capacity.Value()
			} else {
				rest += capacity.Value()
			}
		}
		return ready, rest
	}
	b.eventually("what is ready is published", func() bool { ready, _ := sum(); return ready == 8*page })
	supplies, err := b.agent().Supply(context.Background())
	must(t, err)
	if ready, rest := sum(); ready+rest != supplies[0].TotalBytes {
		t.Fatalf("%d and %d bytes of %+v", ready, rest, supplies)
	}
	get := func() (int, string) {
		reply, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", b.healthPort))
		if err != nil {
			return 0, err.Error()
		}
		defer reply.Body.Close()
		text, _ := io.ReadAll(reply.Body)
		return reply.StatusCode, string(text)
	}
	if code, text := get(); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	tainted := func() bool {
		for _, device := range b.api.devices() {
			if len(device.Taints) != 1 || device.Taints[0].Key != "prezero.io/daemon-down" {
				return false
			}
		}
		return len(b.api.devices()) > 0
	}
	b.kill(&b.daemon)
	b.eventually("a taint while the daemon is down", tainted)
	b.eventually("healthz says why", func() bool {
		code, text := get()
		return code == 503 && strings.Contains(text, "does not answer")
	})
	b.startDaemon()
	b.eventually("no taint when it is back", func() bool {
		for _, device := range b.api.devices() {
			if len(device.Taints) > 0 {
				return false
			}
		}
		code, _ := get()
		return code == 200
	})
	b.api.mu.Lock()
	defer b.api.mu.Unlock()
	if b.api.writes > 12 {
		t.Fatalf("%d writes of slices for five changes", b.api.writes)
	}
}

// The driver and the daemon are killed between and inside of calls, and the kubelet asks again.
// Promise P141 (pods): However driver and daemon are killed between and inside of calls, every
// answer to the kubelet holds, and in the end no page is lost and no name, spec or record is left.
// The same holds where the kubelet gives up a call while the daemon makes its loan.
func TestDriverAndDaemonKilledAtAnyInstantLoseNoPageOrName(t *testing.T) {
	seed := time.Now().UnixNano()
	if text := os.Getenv("PREZERO_TEST_SEED"); text != "" {
		fmt.Sscan(text, &seed)
	}
	kills := 24
	if text := os.Getenv("PREZERO_TEST_KILLS"); text != "" {
		fmt.Sscan(text, &kills)
	}
	t.Logf("seed %d; set PREZERO_TEST_SEED to repeat another run", seed)
	random := rand.New(rand.NewSource(seed))
	b := start(t, pool)
	b.ready()
	var claims []*resourceapi.ResourceClaim
	for nth := range 6 {
		sizes := []int64{page * int64(1+nth%3), page}[:1+nth%2]
		claims = append(claims, b.api.add(claim(fmt.Sprintf("ns-%d", nth%2), fmt.Sprintf("c%d", nth), "", sizes...)))
	}
	// What the kubelet was told, as it is.
	prepared := map[int][]string{}
	var answered, retried int
	// until it is done, as the kubelet does; what it had of it before stays.
	insist := func(what func() error) {
		t.Helper()
		for end := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
			err := what()
			if err == nil {
				answered++
				return
			}
			retried++
			if strings.Contains(err.Error(), "not enough huge pages") || time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	killer := make(chan func())
	done := make(chan bool)
	go func() {
		for kill := range killer {
			kill()
			done <- true
		}
	}()
	for round := range kills {
		delay := time.Duration(random.Intn(12_000)) * time.Microsecond
		victim := random.Intn(3)
		killer <- func() {
			time.Sleep(delay)
			if victim != 1 {
				b.kill(&b.driver)
				b.startDriver()
			}
			if victim != 0 {
				b.kill(&b.daemon)
				b.startDaemon()
			}
		}
		for range 3 {
			nth := random.Intn(len(claims))
			if _, is := prepared[nth]; is && random.Intn(3) > 0 {
				insist(func() error { return b.unprepare(claims[nth]) })
				delete(prepared, nth)
				continue
			}
			var paths []string
			insist(func() (err error) { paths, err = b.prepare(claims[nth]); return err })
			if before, is := prepared[nth]; is {
				if !slices.Equal(before, paths) {
					t.Fatalf("round %d: claim %d has %v and had %v", round, nth, paths, before)
				}
				continue
			}
			for _, path := range paths {
				holds(t, path, 0)
				soil(t, path, byte(nth+1))
			}
			prepared[nth] = paths
		}
		<-done
		for nth, paths := range prepared {
			for _, path := range paths {
				holds(t, path, byte(nth+1))
			}
		}
	}
	close(killer)
	t.Logf("%d answers, %d calls made again", answered, retried)
	for nth := range claims {
		insist(func() error { return b.unprepare(claims[nth]) })
	}
	b.eventually("nothing is left", b.isClean)
	// Every page is available again: only then does the cleanup find the pool as it was.
	b.eventually("no page is lent or draining", func() bool {
		out, err := exec.Command(b.binary, "status", "--json", "--socket", b.path("socket")).Output()
		return err == nil && strings.Contains(string(out), `"lent_pages": 0`) && strings.Contains(string(out), `"draining_pages": 0`)
	})
}
