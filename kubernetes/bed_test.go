// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"prezero-dra/driver"
	"prezero/agent"
)

const (
	page     = 2 << 20
	timeout  = 30 * time.Second
	nodeName = "node-1"
)

// bed is a node: the real daemon on real huge pages, the real driver, and doubles of the kubelet and of
// the API server that they are told by.
type bed struct {
	t              *testing.T
	dir, binary    string
	driverBinary   string
	config         string
	daemon, driver *exec.Cmd
	api            *api
	arguments      []string
	healthPort     int
	// The daemon's, where it lends plain memory and not huge pages.
	plain bool
	run   string
}

// skip counts as a failure where every skip that could have run is one.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("PREZERO_TEST_NO_SKIP") != "" {
		t.Fatal("would be skipped: " + why)
	}
	t.Skip(why)
}

// pages reserves n pages of 2 MiB for the test; one test of this machine at a time has some.
func pages(t *testing.T, wanted int) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "changing the hugetlb pool needs root")
	}
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "prezero-test-hugepages.lock"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	must(t, err)
	must(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	const total = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	read := func() int {
		text, err := os.ReadFile(total)
		must(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		must(t, err)
		return n
	}
	before := read()
	// As in the Rust tests: the next test after a killed one puts the pool back.
	if left, err := io.ReadAll(lock); err != nil || len(left) > 0 {
		lock.Close()
		skip(t, fmt.Sprintf("a killed test has left the pool changed, which a Rust test mends: %q %v", left, err))
	}
	_, err = fmt.Fprintf(lock, "%d - %d\n", page, before)
	must(t, err)
	set := func(n int) { must(t, os.WriteFile(total, []byte(strconv.Itoa(n)), 0o644)) }
	t.Cleanup(func() {
		for end := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
			set(before)
			if read() == before {
				break
			}
			if time.Now().After(end) {
				t.Errorf("the pool has %d pages, and had %d: some are lost", read(), before)
				break
			}
		}
		must(t, lock.Truncate(0))
		lock.Close()
	})
	set(before + wanted)
	if read() != before+wanted {
		skip(t, fmt.Sprintf("this machine cannot reserve %d pages of 2 MiB", wanted))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, config string, arguments ...string) *bed {
	t.Helper()
	b := lay(t, config, arguments...)
	pages(t, 24)
	// Cleanups run in reverse: the daemon ends before the pages are counted.
	t.Cleanup(b.end)
	b.startDaemon()
	b.startDriver()
	return b
}

// startPlain is the same on plain memory of 4 KiB pages: there is enough for loans that take seconds.
func startPlain(t *testing.T, config string, arguments ...string) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "the daemon gives files away, which needs root")
	}
	b := lay(t, config, arguments...)
	run, err := os.MkdirTemp("/dev/shm", "prezero-test-")
	must(t, err)
	b.plain, b.run = true, run
	t.Cleanup(func() { os.RemoveAll(run) })
	t.Cleanup(b.end)
	b.startDaemon()
	b.startDriver()
	return b
}

// driverBinary of this checkout, which built makes once.
var (
	driverBinary string
	built        = sync.OnceValue(func() error {
		out, err := exec.Command("go", "build", "-o", driverBinary, ".").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
)

func TestMain(m *testing.M) {
	// A name by which the Rust tests clean up after a killed one.
	dir, err := os.MkdirTemp("", "prezero-test-")
	if err != nil {
		panic(err)
	}
	driverBinary = filepath.Join(dir, "prezero-dra")
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// lay the bed, without daemon and driver.
func lay(t *testing.T, config string, arguments ...string) *bed {
	t.Helper()
	binary := os.Getenv("PREZERO_BIN")
	if binary == "" {
		binary = "../target/debug/prezero"
	}
	if _, err := os.Stat(binary); err != nil {
		skip(t, "no daemon: cargo build --package prezero-cli, or say where by PREZERO_BIN")
	}
	// A name by which the Rust tests clean up after a killed one.
	dir, err := os.MkdirTemp("", "prezero-test-")
	must(t, err)
	b := &bed{t: t, dir: dir, binary: binary, driverBinary: driverBinary, arguments: arguments, run: filepath.Join(dir, "run")}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := built(); err != nil {
		t.Fatal(err)
	}
	// The daemon's socket for metrics is where it runs.
	b.config = config
	for _, name := range []string{"kubelet/plugins_registry", "cdi"} {
		must(t, os.MkdirAll(b.path(name), 0o755))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	b.healthPort = listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	b.api = newAPI(t)
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: c\n", b.api.URL)
	must(t, os.WriteFile(b.path("kubeconfig"), []byte(kubeconfig), 0o600))
	return b
}

// end the daemon and the driver.
func (b *bed) end() {
	b.kill(&b.driver)
	b.kill(&b.daemon)
	syscall.Unmount(filepath.Join(b.run, "pages-2048kB"), syscall.MNT_DETACH)
	if b.t.Failed() {
		for _, name := range []string{"daemon.log", "driver.log"} {
			log, _ := os.ReadFile(b.path(name))
			b.t.Logf("%s:\n%s", name, log[max(0, len(log)-6000):])
		}
	}
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bed) spawn(log, program string, arguments ...string) *exec.Cmd {
	out, err := os.OpenFile(b.path(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(b.t, err)
	defer out.Close()
	command := exec.Command(program, arguments...)
	command.Stdout, command.Stderr = out, out
	// Nothing is left of a test that is killed.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(b.t, command.Start())
	return command
}

func (b *bed) startDaemon() {
	text := strings.ReplaceAll(b.config, "METRICS", filepath.Join(b.run, "metrics"))
	must(b.t, os.WriteFile(b.path("config.toml"), []byte(text), 0o600))
	arguments := []string{"serve", "--config", b.path("config.toml"), "--socket", b.path("socket"), "--run-dir", b.run, "--set", "tree.enabled=false"}
	if b.plain {
		arguments = append(arguments, "--plain")
	}
	b.daemon = b.spawn("daemon.log", b.binary, arguments...)
}

func (b *bed) startDriver() {
	// The last one of a flag holds.
	arguments := append([]string{"--publish-interval", "1s", "--publish-settle", "1s", "--claim-status", "--daemon-metrics", filepath.Join(b.run, "metrics"), "--node", nodeName, "--socket", b.path("socket.agent"), "--kubelet", b.path("kubelet"), "--cdi", b.path("cdi"),
		"--kubeconfig", b.path("kubeconfig"), "--health", fmt.Sprintf("127.0.0.1:%d", b.healthPort)}, b.arguments...)
	b.driver = b.spawn("driver.log", b.driverBinary, arguments...)
}

// kill -9, and the end of it.
func (b *bed) kill(process **exec.Cmd) {
	if *process != nil {
		(*process).Process.Kill()
		(*process).Wait()
		*process = nil
	}
}

func (b *bed) agent() agent.Client { return agent.Client{Socket: b.path("socket.agent")} }

// eventually waits for something that ought to come true.
func (b *bed) eventually(what string, is func() bool) {
	b.t.Helper()
	for end := time.Now().Add(timeout); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("never: %s", what)
		}
	}
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// register as the kubelet does when it sees the socket.
func (b *bed) register() error {
	conn, err := dial(b.path("kubelet/plugins_registry/" + driver.Name + "-reg.sock"))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return err
	}
	if info.Type != registerapi.DRAPlugin || info.Name != driver.Name {
		return fmt.Errorf("registers as %v", info)
	}
	_, err = client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true})
	return err
}

func (b *bed) call(within time.Duration, f func(context.Context, drapb.DRAPluginClient) error) error {
	conn, err := dial(b.path("kubelet/plugins/" + driver.Name + "/dra.sock"))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return f(ctx, drapb.NewDRAPluginClient(conn))
}

func asked(claim *resourceapi.ResourceClaim) []*drapb.Claim {
	return []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}
}

// prepare as the kubelet asks; the paths of the files that the containers get.
func (b *bed) prepare(claim *resourceapi.ResourceClaim) ([]string, error) {
	err := b.call(5*time.Second, func(ctx context.Context, client drapb.DRAPluginClient) error {
		reply, err := client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: asked(claim)})
		if err != nil {
			return err
		}
		one := reply.Claims[string(claim.UID)]
		if one.GetError() != "" {
			return fmt.Errorf("refused: %s", one.GetError())
		}
		if len(one.GetDevices()) != len(claim.Status.Allocation.Devices.Results) {
			return fmt.Errorf("refused: %d devices", len(one.GetDevices()))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b.mounts(claim)
}

func (b *bed) mounts(claim *resourceapi.ResourceClaim) ([]string, error) {
	text, err := os.ReadFile(b.path("cdi/" + driver.Name + "-" + string(claim.UID) + ".json"))
	if err != nil {
		return nil, err
	}
	var spec struct {
		Devices []struct {
			Edits struct {
				Mounts []struct{ HostPath string }
			} `json:"containerEdits"`
		}
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, err
	}
	var paths []string
	for _, device := range spec.Devices {
		paths = append(paths, device.Edits.Mounts[0].HostPath)
	}
	return paths, nil
}

func (b *bed) unprepare(claim *resourceapi.ResourceClaim) error {
	return b.call(5*time.Second, func(ctx context.Context, client drapb.DRAPluginClient) error {
		reply, err := client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: asked(claim)})
		if err != nil {
			return err
		}
		if text := reply.Claims[string(claim.UID)].GetError(); text != "" {
			return fmt.Errorf("refused: %s", text)
		}
		return nil
	})
}

// claim of n bytes, as the scheduler has allocated it on this node.
func claim(namespace, name string, parameters string, bytes ...int64) *resourceapi.ResourceClaim {
	devices := resourceapi.DeviceAllocationResult{}
	for nth, n := range bytes {
		devices.Results = append(devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: fmt.Sprintf("mem-%d/any", nth), Driver: driver.Name, Pool: nodeName, Device: "node0-2048k-rest",
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{driver.Capacity: *resource.NewQuantity(n, resource.BinarySI)},
		})
	}
	if parameters != "" {
		devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source:              resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver.Name, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}},
		}}
	}
	return &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name)},
		Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{Devices: devices},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-of-" + name, UID: types.UID("pod-of-" + name)}},
		},
	}
}

// api is what the driver asks of an API server: claims to get, slices to list, watch and write.
type api struct {
	*httptest.Server
	mu     sync.Mutex
	claims map[string]*resourceapi.ResourceClaim
	// Namespaces that were made anew, how often.
	anew   map[string]int
	slices map[string]*resourceapi.ResourceSlice
	// The sent bytes of each slice, with fields unknown to this program's modules.
	sent map[string]map[string]any
	// Of Kubernetes 1.
	minor    int
	version  int
	watchers map[chan []byte]bool
	writes   int
	// Calls about claims, events by their reasons, and what was applied to claims' statuses.
	gets, lists int
	events      map[string]*corev1.Event
	statuses    map[string]string
	// As an API server without the feature of consumable capacity: it takes slices and drops fields.
	drops bool
	// Closed at the end: a watch that is begun after the others were cut would keep Close waiting.
	over chan struct{}
}

func newAPI(t *testing.T) *api {
	a := &api{claims: map[string]*resourceapi.ResourceClaim{}, anew: map[string]int{}, slices: map[string]*resourceapi.ResourceSlice{}, sent: map[string]map[string]any{}, minor: 36, events: map[string]*corev1.Event{}, statuses: map[string]string{}, watchers: map[chan []byte]bool{}, version: 1, over: make(chan struct{})}
	mux := http.NewServeMux()
	const root = "/apis/resource.k8s.io/v1"
	mux.HandleFunc("GET "+root+"/namespaces/{ns}/resourceclaims/{name}", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.gets++
		if found := a.claims[r.PathValue("ns")+"/"+r.PathValue("name")]; found != nil {
			answer(w, 200, found)
		} else {
			status(w, 404, metav1.StatusReasonNotFound)
		}
	})
	mux.HandleFunc("GET "+root+"/namespaces/{ns}/resourceclaims", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.lists++
		list := resourceapi.ResourceClaimList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimList"}}
		for _, one := range a.claims {
			if one.Namespace == r.PathValue("ns") {
				list.Items = append(list.Items, *one)
			}
		}
		answer(w, 200, list)
	})
	mux.HandleFunc("PATCH "+root+"/namespaces/{ns}/resourceclaims/{name}/status", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		name := r.PathValue("ns") + "/" + r.PathValue("name")
		a.statuses[name] = string(body)
		if found := a.claims[name]; found != nil {
			answer(w, 200, found)
		} else {
			status(w, 404, metav1.StatusReasonNotFound)
		}
	})
	mux.HandleFunc("POST /api/v1/namespaces/{ns}/events", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		event, ok := object.(*corev1.Event)
		if err != nil || !ok {
			status(w, 400, metav1.StatusReasonBadRequest)
			return
		}
		event.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.events[event.Reason] = event
		answer(w, 201, event)
	})
	mux.HandleFunc("GET /api/v1/namespaces/{name}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		answer(w, 200, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name, "uid": a.namespaceUID(name)}})
	})
	mux.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, 200, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": r.PathValue("name"), "uid": "node-uid"}})
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		answer(w, 200, map[string]string{"major": "1", "minor": strconv.Itoa(a.minor)})
	})
	mux.HandleFunc("GET "+root+"/resourceslices", a.list)
	mux.HandleFunc("POST "+root+"/resourceslices", func(w http.ResponseWriter, r *http.Request) { a.put(w, r, "ADDED") })
	mux.HandleFunc("PUT "+root+"/resourceslices/{name}", func(w http.ResponseWriter, r *http.Request) { a.put(w, r, "MODIFIED") })
	mux.HandleFunc("DELETE "+root+"/resourceslices/{name}", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if found := a.slices[r.PathValue("name")]; found != nil {
			delete(a.slices, found.Name)
			a.tell("DELETED", found)
		}
		answer(w, 200, metav1.Status{Status: "Success"})
	})
	a.Server = httptest.NewServer(mux)
	t.Cleanup(func() { close(a.over); a.CloseClientConnections(); a.Close() })
	return a
}

func answer(w http.ResponseWriter, code int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(what)
}

func status(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	answer(w, int(code), metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: reason, Code: code})
}

// shown is a slice as it was sent, without the field that a server of this version does not know.
func (a *api) shown(slice *resourceapi.ResourceSlice) any {
	text, _ := json.Marshal(slice)
	shown := map[string]any{}
	json.Unmarshal(text, &shown)
	var spec map[string]any
	text, _ = json.Marshal(a.sent[slice.Name]["spec"])
	json.Unmarshal(text, &spec)
	unknown := "nodeAllocatableResources"
	if a.minor >= 37 {
		unknown = "nodeAllocatableResourceMappings"
	}
	devices, _ := spec["devices"].([]any)
	for _, device := range devices {
		delete(device.(map[string]any), unknown)
	}
	shown["spec"] = spec
	return shown
}

func (a *api) tell(what string, slice *resourceapi.ResourceSlice) {
	event, _ := json.Marshal(map[string]any{"type": what, "object": a.shown(slice)})
	for watcher := range a.watchers {
		watcher <- event
	}
}

func (a *api) put(w http.ResponseWriter, r *http.Request, what string) {
	body, err := io.ReadAll(r.Body)
	object, _, bad := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	sent, ok := object.(*resourceapi.ResourceSlice)
	if err != nil || bad != nil || !ok {
		status(w, 400, metav1.StatusReasonBadRequest)
		return
	}
	slice := *sent
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.writes++
	if slice.Name == "" {
		slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, a.version)
	} else if a.slices[slice.Name] == nil {
		status(w, 404, metav1.StatusReasonNotFound)
		return
	}
	if slice.UID == "" {
		slice.UID = types.UID(slice.Name)
	}
	slice.ResourceVersion = strconv.Itoa(a.version)
	slice.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}
	if a.drops {
		for nth := range slice.Spec.Devices {
			slice.Spec.Devices[nth].AllowMultipleAllocations = nil
			memory := slice.Spec.Devices[nth].Capacity[driver.Capacity]
			memory.RequestPolicy = nil
			slice.Spec.Devices[nth].Capacity[driver.Capacity] = memory
		}
		body, _ = json.Marshal(&slice)
	}
	a.slices[slice.Name] = &slice
	whole := map[string]any{}
	if json.Unmarshal(body, &whole) != nil {
		// It came as protobuf, which the modules know as well as this program does.
		text, _ := json.Marshal(&slice)
		json.Unmarshal(text, &whole)
	}
	a.sent[slice.Name] = whole
	a.tell(what, &slice)
	answer(w, 200, a.shown(&slice))
}

func (a *api) list(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		status(w, 422, metav1.StatusReasonInvalid)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		a.mu.Lock()
		defer a.mu.Unlock()
		items := []any{}
		for _, slice := range a.slices {
			items = append(items, a.shown(slice))
		}
		answer(w, 200, map[string]any{
			"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList",
			"metadata": map[string]string{"resourceVersion": strconv.Itoa(a.version)}, "items": items,
		})
		return
	}
	events := make(chan []byte, 1000)
	a.mu.Lock()
	a.watchers[events] = true
	a.mu.Unlock()
	defer func() { a.mu.Lock(); delete(a.watchers, events); a.mu.Unlock() }()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-a.over:
			return
		case event := <-events:
			w.Write(append(event, '\n'))
			w.(http.Flusher).Flush()
		}
	}
}

func (a *api) namespaceUID(name string) types.UID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return types.UID(fmt.Sprintf("uid-of-%s-%d", name, a.anew[name]))
}

// scope of a namespace's loans as it is now.
func (a *api) scope(namespace string) string {
	return driver.Scope(namespace, a.namespaceUID(namespace))
}

// makeAnew a namespace that was deleted.
func (a *api) makeAnew(namespace string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.anew[namespace]++
}

func (a *api) add(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claims[claim.Namespace+"/"+claim.Name] = claim
	return claim
}

func (a *api) forget(claim *resourceapi.ResourceClaim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.claims, claim.Namespace+"/"+claim.Name)
}

// wipe all slices of the node, as a kubelet that starts does.
func (a *api) wipe() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, slice := range a.slices {
		delete(a.slices, name)
		a.tell("DELETED", slice)
	}
}

// devices that are published now.
func (a *api) devices() map[string]resourceapi.Device {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]resourceapi.Device{}
	for _, slice := range a.slices {
		for _, device := range slice.Spec.Devices {
			all[device.Name] = device
		}
	}
	return all
}
