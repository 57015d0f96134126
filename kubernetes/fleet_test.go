// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"prezero-dra/driver"
)

// names of all loans of the daemon.
func (b *bed) names() (names []string) {
	loans, _ := b.agent().Loans(context.Background(), "")
	for _, loan := range loans {
		names = append(names, loan.Name)
	}
	return names
}

// isLeft tells whether these loans are there, and no others.
func (b *bed) isLeft(names ...string) func() bool {
	slices.Sort(names)
	return func() bool { return slices.Equal(b.names(), names) }
}

// lends to another agent.
func (b *bed) lendsOther(name string) {
	must(b.t, exec.Command(b.binary, "lend", "4K", "--name", name, "--socket", b.path("socket")).Run())
}

func (b *bed) name(claim *resourceapi.ResourceClaim) string {
	return b.api.scope(claim.Namespace) + "/k8s." + string(claim.UID) + ".0"
}

func (b *bed) prepared(claims ...*resourceapi.ResourceClaim) {
	b.t.Helper()
	for _, one := range claims {
		_, err := b.prepare(b.api.add(one))
		must(b.t, err)
	}
}

// As `kubeadm reset` leaves a node: the kubelet's directory is gone with the driver's records, and the pods and
// claims are deleted. Its loans are the daemon's still.
//
// Promise P340 (pods): A loan of the driver whose claim is not allocated on its node and
// reserved is returned after the grace, whether the node was reset, a record was lost or the
// claim moved. Loans of other agents stay.
func TestLoansOfANodeThatWasResetAreReturned(t *testing.T) {
	b := startPlain(t, plainPool, "--grace", "300ms", "--reconcile", "100ms")
	b.ready()
	lost, again := ofPlain(claim("a", "lost", "", small)), ofPlain(claim("b", "again", "", small))
	b.prepared(lost, again)
	// Another agent's loans stay, also those of names that look like it.
	b.lendsOther("other/1")
	b.lendsOther("a@abcdefghij/01234567-89ab-cdef-0123-456789abcdef.0")
	b.kill(&b.driver)
	for _, dir := range []string{"kubelet", "cdi"} {
		must(t, os.RemoveAll(b.path(dir)))
	}
	must(t, os.MkdirAll(b.path("kubelet/plugins_registry"), 0o755))
	b.api.forget(lost)
	b.startDriver()
	others := []string{"a@abcdefghij/01234567-89ab-cdef-0123-456789abcdef.0", "other/1"}
	left := b.isLeft(append([]string{b.name(again)}, others...)...)
	b.eventually("what is gone is returned", left)
	b.stays("what a claim has, and others' loans", left)
	// It has a record again, and is unprepared as any other.
	b.eventually("the other claim's record is written anew", func() bool {
		_, err := os.Stat(b.path("kubelet/plugins/prezero.io/claims/" + string(again.UID) + ".json"))
		return err == nil
	})
	b.ready()
	must(t, b.unprepare(again))
	b.eventually("nothing but others' loans is left", b.isLeft(others...))
}

// Promise P340.
func TestALoanOfALostRecordIsCountedAgain(t *testing.T) {
	b := startPlain(t, plainPool, "--grace", "300ms", "--reconcile", "100ms")
	b.ready()
	one := ofPlain(claim("a", "one", "", small))
	one.Status.Allocation.Devices.Results[0].Device = "node0-4k-ready-4k"
	b.prepared(one)
	record := b.path("kubelet/plugins/prezero.io/claims/" + string(one.UID) + ".json")
	before, err := os.ReadFile(record)
	must(t, err)
	must(t, os.Remove(record))
	b.eventually("the record is written anew", func() bool {
		after, err := os.ReadFile(record)
		return err == nil && string(after) == string(before)
	})
	b.stays("the loan", b.isLeft(b.name(one)))
	must(t, b.unprepare(one))
	if !b.isClean() {
		t.Error("something is left")
	}
}

// A claim that a person made lives on, and is allocated where its next pod is. A kubelet that has lost its
// checkpoint never unprepares what the one before had.
//
// Promise P340.
func TestAClaimThatMovedToAnotherNodeLeavesNoLoan(t *testing.T) {
	b := startPlain(t, plainPool, "--grace", "300ms", "--reconcile", "100ms")
	b.ready()
	stays, moved, idle := ofPlain(claim("a", "stays", "", small)), ofPlain(claim("a", "moved", "", small)), ofPlain(claim("a", "idle", "", small))
	b.prepared(stays, moved, idle)
	b.stays("the loans of claims that are here", b.isLeft(b.name(stays), b.name(moved), b.name(idle)))
	elsewhere := moved.DeepCopy()
	elsewhere.Status.Allocation.Devices.Results[0].Pool = "node-2"
	b.api.add(elsewhere)
	// Allocated here, and of no pod.
	unused := idle.DeepCopy()
	unused.Status.ReservedFor = nil
	b.api.add(unused)
	b.eventually("the loans of the others are returned", b.isLeft(b.name(stays)))
	b.stays("the loan of the claim that is here", b.isLeft(b.name(stays)))
	must(t, b.unprepare(stays))
	if !b.isClean() {
		t.Error("something is left")
	}
}

// podList is the kubelet's service of pod resources.
type podList struct {
	podresources.UnimplementedPodResourcesListerServer
	mu   sync.Mutex
	uids []types.UID
}

func (p *podList) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod := &podresources.PodResources{Name: "p", Containers: []*podresources.ContainerResources{{Name: "c"}}}
	for _, uid := range p.uids {
		device := &podresources.CDIDevice{Name: "prezero.io/memory=" + string(uid) + "-0"}
		pod.Containers[0].DynamicResources = append(pod.Containers[0].DynamicResources, &podresources.DynamicResource{
			ClaimResources: []*podresources.ClaimResource{{DriverName: driver.Name, CdiDevices: []*podresources.CDIDevice{device}}},
		})
	}
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{pod}}, nil
}

// listPods as a kubelet that has given its pods these claims.
func (b *bed) listPods(uids ...types.UID) *podList {
	path := b.path("kubelet/pod-resources")
	must(b.t, os.MkdirAll(path, 0o755))
	listener, err := net.Listen("unix", filepath.Join(path, "kubelet.sock"))
	must(b.t, err)
	list, server := &podList{uids: uids}, grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, list)
	go server.Serve(listener)
	b.t.Cleanup(server.Stop)
	return list
}

// Promise P341 (pods): A claim that the kubelet has for a pod costs the API server no call.
func TestClaimsThatTheKubeletHasCostTheServerNoCall(t *testing.T) {
	b := startPlain(t, plainPool, "--grace", "300ms", "--reconcile", "50ms")
	b.ready()
	var claims []*resourceapi.ResourceClaim
	var uids []types.UID
	for nth := range 20 {
		claims = append(claims, ofPlain(claim("a", fmt.Sprintf("c%d", nth), "", small)))
		uids = append(uids, claims[nth].UID)
	}
	b.prepared(claims...)
	list := b.listPods(uids...)
	calls := func() int {
		b.api.mu.Lock()
		defer b.api.mu.Unlock()
		return b.api.gets + b.api.lists
	}
	over := func() int {
		before := calls()
		time.Sleep(time.Second)
		return calls() - before
	}
	// What was asked before the kubelet answered has its end.
	b.eventually("a second without a call", func() bool { return over() == 0 })
	if made := over(); made > 0 {
		t.Errorf("%d calls in a second about claims that the kubelet has", made)
	}
	// Only what the kubelet does not have is looked at, and returned if it is gone.
	list.mu.Lock()
	list.uids = uids[1:]
	list.mu.Unlock()
	if made := over(); made == 0 || made > 30 {
		t.Errorf("%d calls in a second about one claim", made)
	}
	b.api.forget(claims[0])
	b.eventually("the loan of a claim that is gone is returned", func() bool { return len(b.names()) == 19 })
	for _, one := range claims {
		must(t, b.unprepare(one))
	}
}

// An API server without consumable capacity, as 1.34 and 1.35 are, takes slices and drops what they say.
//
// Promise P342 (pods): Where the API server drops fields of the devices, an event of the node,
// `/healthz` and the refusal of a claim name the missing feature.
func TestADriverWhoseFieldsAreDroppedSaysSoLoudly(t *testing.T) {
	b := startPlain(t, plainPool)
	b.ready()
	b.eventually("all is well", func() bool { code, _ := b.healthz(); return code == 200 })
	b.kill(&b.driver)
	b.api.mu.Lock()
	b.api.drops = true
	b.api.slices = map[string]*resourceapi.ResourceSlice{}
	b.api.mu.Unlock()
	b.startDriver()
	b.ready()
	b.eventually("/healthz says which feature is missing", func() bool {
		code, text := b.healthz()
		return code == 503 && strings.Contains(text, "DRAConsumableCapacity") && strings.Contains(text, "1.36")
	})
	b.eventually("so does an event of the node", func() bool {
		b.api.mu.Lock()
		defer b.api.mu.Unlock()
		event := b.api.events["PrezeroFeatureDisabled"]
		return event != nil && event.InvolvedObject.Kind == "Node" && event.InvolvedObject.Name == nodeName && strings.Contains(event.Message, "DRAConsumableCapacity")
	})
	// What the scheduler allocates there has no capacity.
	bare := ofPlain(claim("a", "bare", "", small))
	bare.Status.Allocation.Devices.Results[0].ConsumedCapacity = nil
	b.api.add(bare)
	if _, err := b.prepare(bare); err == nil || !strings.Contains(err.Error(), "DRAConsumableCapacity") {
		t.Errorf("a claim without its capacity: %v", err)
	}
}

func (b *bed) page(path string) (int, string) {
	reply, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", b.healthPort, path))
	if err != nil {
		return 0, err.Error()
	}
	defer reply.Body.Close()
	text, _ := io.ReadAll(reply.Body)
	return reply.StatusCode, string(text)
}

// Promise P345 (pods): A claim's status says its path and bytes, the driver's metrics its
// calls, and the kubelet hears how devices are.
func TestAClaimsStatusAndMetricsSayWhatItGot(t *testing.T) {
	b := startPlain(t, plainPool+"[metrics]\nlisten = \"METRICS\"\n")
	one := ofPlain(claim("a", "one", "", 16*small))
	b.ready()
	b.prepared(one)
	var applied struct {
		Status struct {
			Devices []struct {
				Driver, Pool, Device string
				Data                 struct {
					Path                         string
					Bytes, ReadyBytes, PageBytes int64
				}
				Conditions []struct{ Type, Status, Message string }
			}
		}
	}
	b.eventually("its status is written", func() bool {
		b.api.mu.Lock()
		defer b.api.mu.Unlock()
		return json.Unmarshal([]byte(b.api.statuses["a/one"]), &applied) == nil
	})
	device := applied.Status.Devices[0]
	if device.Driver != driver.Name || device.Pool != nodeName || device.Device != "node0-4k-rest" || device.Data.Path != "/dev/prezero/mem-0" ||
		device.Data.Bytes != 16*small || device.Data.PageBytes != small || device.Conditions[0].Type != "Ready" || device.Conditions[0].Status != "True" {
		t.Errorf("%+v", applied)
	}
	must(t, b.unprepare(one))
	b.eventually("devices are published", func() bool { return len(b.api.devices()) > 0 })
	code, text := b.page("/metrics")
	for _, line := range []string{
		`prezero_dra_call_seconds_count{call="prepare",result="ok"} 1`, `prezero_dra_call_seconds_count{call="unprepare",result="ok"} 1`,
		"prezero_dra_daemon_up 1", `prezero_dra_publications_total{reason="first"} 1`, `prezero_dra_lent_bytes_total{state="zeroed"}`, "process_cpu_seconds_total",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("%d: no %q in\n%s", code, line, text)
		}
	}
	if code, text := b.page("/livez"); code != 200 {
		t.Errorf("/livez: %d %s", code, text)
	}
	if code, text := b.page("/daemon/metrics?x=../y"); code != 200 || !strings.Contains(text, "prezero_pages{") || !strings.HasSuffix(text, "# EOF\n") {
		t.Errorf("/daemon/metrics: %d %s", code, text)
	}
	if code, _ := b.page("/daemon/other"); code != 404 {
		t.Errorf("another page of the daemon's: %d", code)
	}
	b.kill(&b.daemon)
	if code, text := b.page("/daemon/metrics"); code != 503 || !strings.Contains(text, "[metrics] listen") {
		t.Errorf("without a daemon: %d %s", code, text)
	}
	if code, text := b.page("/livez"); code != 200 {
		t.Errorf("/livez without a daemon: %d %s", code, text)
	}
}

// Promise P345.
func TestTheKubeletHearsHowDevicesAre(t *testing.T) {
	b := startPlain(t, plainPool)
	b.ready()
	b.eventually("devices are published", func() bool { return len(b.api.devices()) > 0 })
	watch := func(want drahealth.HealthStatus) error {
		conn, err := dial(b.path("kubelet/plugins/" + driver.Name + "/dra.sock"))
		if err != nil {
			return err
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		stream, err := drahealth.NewDRAResourceHealthClient(conn).NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
		if err != nil {
			return err
		}
		for {
			report, err := stream.Recv()
			if err != nil {
				return err
			}
			for _, device := range report.Devices {
				if device.Device.PoolName != nodeName || !strings.HasPrefix(device.Device.DeviceName, "node0-4k-") {
					return fmt.Errorf("%+v", device)
				}
			}
			if len(report.Devices) == 0 {
				return errors.New("no device")
			}
			if report.Devices[0].Health == want {
				return nil
			}
		}
	}
	must(t, watch(drahealth.HealthStatus_HEALTHY))
	b.kill(&b.daemon)
	must(t, watch(drahealth.HealthStatus_UNKNOWN))
}
