// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	events "k8s.io/client-go/tools/record"

	"prezero/agent"
)

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
	scope := Scope(strings.Repeat("n", 63), "0f3c0000-0000-4000-8000-000000000001")
	const uid = "01234567-89ab-cdef-0123-456789abcdef"
	name := loanName(scope, uid, 31)
	if len(name) > 118 {
		t.Fatalf("%q has %d characters, and the daemon takes 118", name, len(name))
	}
	if of, namespace, claim, isOurs := claimOf(name); !isOurs || of != scope || namespace != strings.Repeat("n", 63) || claim != uid {
		t.Errorf("%q reads as of %q, %q, %q", name, of, namespace, claim)
	}
	for _, name := range []string{"", "other/1", "k8s.x.0", "team/k8s." + uid + ".0", "team@abc/k8s." + uid + ".0", "team@abcdefghij/" + uid + ".0",
		"team@abcdefghij/k8s." + uid, "team@abcdefghij/k8s." + uid + ".x", "@abcdefghij/k8s." + uid + ".0", "team@abcdefghij/k8s..0"} {
		if _, _, _, isOurs := claimOf(name); isOurs {
			t.Errorf("%q is a loan of this driver", name)
		}
	}
}

func TestALoansNameStaysOverDriversThatNameOthers(t *testing.T) {
	all := []allotted{{index: 0}, {index: 2}}
	for _, before := range []record{
		{Namespace: "team", Loans: []string{"team@abcdefghij/uid.0", "team@abcdefghij/uid.2"}},
		{Namespace: "team", Loans: []string{"team@abcdefghij/k8s.uid.0", "team@abcdefghij/k8s.uid.2"}},
	} {
		if names := before.names("uid", all); !slices.Equal(names, before.Loans) {
			t.Errorf("%v", names)
		}
	}
	if names := (record{Namespace: "team"}).names("uid", all); !slices.Equal(names, []string{"team/uid.0", "team/uid.2"}) {
		t.Errorf("%v", names)
	}
}

func TestTheKubeletsDevicesSayWhoseTheyAre(t *testing.T) {
	if uid, is := claimOfDevice("prezero.io/memory=01234567-89ab-cdef-0123-456789abcdef-12"); !is || uid != "01234567-89ab-cdef-0123-456789abcdef" {
		t.Error(uid, is)
	}
	for _, name := range []string{"", "nvidia.com/gpu=0-0", "prezero.io/memory=", "prezero.io/memory=x", "prezero.io/memory=-1"} {
		if uid, is := claimOfDevice(name); is {
			t.Errorf("%q is of %q", name, uid)
		}
	}
}

func TestOneNamespacesCallsLeaveTurnsToOthers(t *testing.T) {
	all := newTurns(mostOfOne + 1)
	var held []func()
	for range mostOfOne {
		release, err := all.take(t.Context(), "foe")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, release)
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := all.take(soon, "foe"); err == nil || !strings.Contains(err.Error(), `"foe"`) {
		t.Errorf("a fifth turn of one namespace: %v", err)
	}
	release, err := all.take(t.Context(), "victim")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all.take(soon, "third"); err == nil {
		t.Error("more turns than there are")
	}
	release()
	for _, release := range held {
		release()
	}
	if len(all.of)+len(all.all) > 0 {
		t.Errorf("turns are taken that nobody has: %v", all.of)
	}
}

func TestALockIsOneClaimsAndOneCalls(t *testing.T) {
	f := files{records: t.TempDir() + "/claims"}
	unlock, err := f.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := f.lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.lock(soon, "a"); err == nil {
		t.Error("two calls have one claim")
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		unlock()
	}()
	again, err := f.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestANamespacesScopeIsItsNameAndWhichOfThatName(t *testing.T) {
	one, other := Scope("team-a", "0f3c0000-0000-4000-8000-000000000001"), Scope("team-a", "0f3c0000-0000-4000-8000-000000000002")
	if one == other || !regexp.MustCompile(`^team-a@[a-z2-7]{10}$`).MatchString(one) {
		t.Errorf("%s, %s", one, other)
	}
	if (record{Namespace: "team-a"}).scope() != "team-a" || (record{Namespace: "team-a", Loans: []string{one + "/uid.0"}}).scope() != one {
		t.Error("a record does not say what its loans are called")
	}
}

func TestHealthReportsTheDaemonsLastAnswer(t *testing.T) {
	health := &Health{}
	answer := func() (int, string) {
		recorder := httptest.NewRecorder()
		health.ServeHTTP(recorder, nil)
		return recorder.Code, recorder.Body.String()
	}
	if code, text := answer(); code != 503 || !strings.Contains(text, errSilent.Error()) {
		t.Errorf("before the first call: %d %s", code, text)
	}
	health.Note(nil)
	health.Note(errors.New("it restarts"))
	if code, text := answer(); code != 200 {
		t.Errorf("just after an answer: %d %s", code, text)
	}
	health.last.Store(&heard{time.Now().Add(-time.Minute), errors.New("no answer")})
	if code, text := answer(); code != 503 || !strings.Contains(text, "no answer") {
		t.Errorf("a minute after: %d %s", code, text)
	}
	health.Note(nil)
	health.Lacks([]string{"DRAConsumableCapacity"})
	if code, text := answer(); code != 503 || !strings.Contains(text, "DRAConsumableCapacity") {
		t.Errorf("without consumable capacity: %d %s", code, text)
	}
}

func TestADriverIsLiveWithoutItsDaemonAndNotWhenItIsStuck(t *testing.T) {
	health := &Health{}
	code := func() int {
		recorder := httptest.NewRecorder()
		health.Live(recorder, nil)
		return recorder.Code
	}
	if code() != 200 {
		t.Error("it is not live at its start")
	}
	health.Note(errors.New("it is dead"))
	if code() != 200 {
		t.Error("it dies with its daemon")
	}
	health.looked.Store(time.Now().Add(-2 * stuck).UnixNano())
	if code() != 503 {
		t.Error("it is live and does not look")
	}
}

// Promise P389 (pods): A launcher's class gives a container the preload library and the daemon's socket, and no claim can give itself that.
func TestALaunchersClassGivesTheLibraryAndNoClaimDoes(t *testing.T) {
	opaque := func(source resourceapi.AllocationConfigSource, text string) resourceapi.DeviceAllocationConfiguration {
		opaque := &resourceapi.OpaqueDeviceConfiguration{Driver: Name, Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"prezero.io/v1alpha1","kind":"Loan",` + text + `}`)}}
		return resourceapi.DeviceAllocationConfiguration{Source: source, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque}}
	}
	class := opaque(resourceapi.AllocationConfigSourceClass, `"launcher":true`)
	if found, err := parameters([]resourceapi.DeviceAllocationConfiguration{class}, "mem"); err != nil || !found.Launcher {
		t.Errorf("%+v %v", found, err)
	}
	claims := opaque(resourceapi.AllocationConfigSourceClaim, `"launcher":true`)
	if _, err := parameters([]resourceapi.DeviceAllocationConfiguration{claims}, "mem"); err == nil || !strings.Contains(err.Error(), "only a device class may say it") {
		t.Errorf("%v", err)
	}
	library := Library{Preload: "/usr/lib/prezero/libprezero_preload.so", Socket: "/run/prezero/io.prezero"}
	edits := library.launcher("x-0", true).Edits
	if len(edits.Mounts) != 2 || edits.Mounts[0].HostPath != "/usr/lib/prezero" || edits.Mounts[0].Options[0] != "ro" || edits.Mounts[1].ContainerPath != library.Socket {
		t.Errorf("%+v", edits)
	}
	if !slices.Equal(edits.Env, []string{"LD_PRELOAD=" + library.Preload}) {
		t.Errorf("%v", edits.Env)
	}
	if second := library.launcher("x-1", false).Edits; len(second.Mounts)+len(second.Env) != 0 {
		t.Errorf("%+v", second)
	}
}

// Promise P393 (pods): A driver whose daemon is of an older minor version says so, in an event of the node and by a metric.
func TestADaemonOlderThanItsDriverIsToldOnce(t *testing.T) {
	for _, pair := range [][2]string{{"0.0.9", "0.1.0"}, {"0.9.3", "1.0.0"}, {"1.2.0", "1.10.0"}} {
		if !isOlder(pair[0], pair[1]) || isOlder(pair[1], pair[0]) {
			t.Errorf("%v", pair)
		}
	}
	for _, pair := range [][2]string{{"0.1.0", "0.1.9"}, {"x", "0.1.0"}, {"", "0.1.0"}, {"1", "2"}} {
		if isOlder(pair[0], pair[1]) || isOlder(pair[1], pair[0]) {
			t.Errorf("%v", pair)
		}
	}
	chart, err := os.ReadFile("../chart/Chart.yaml")
	if err != nil || !strings.Contains(string(chart), "appVersion: "+Version+"\n") {
		t.Errorf("the chart is of another version than %s: %v", Version, err)
	}
	socket := filepath.Join(t.TempDir(), "agent")
	answer := `{"parameters":{"vendor":"prezero","product":"prezero","version":"0.0.9","url":"","interfaces":[]}}`
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			bufio.NewReader(conn).ReadBytes(0)
			conn.Write(append([]byte(answer), 0))
			conn.Close()
		}
	}()
	recorder, metrics := events.NewFakeRecorder(8), NewMetrics()
	skew := NewSkew(agent.Client{Socket: socket}, &Features{events: recorder, node: &corev1.ObjectReference{}}, metrics)
	skew.Look(t.Context())
	skew.Look(t.Context())
	if len(recorder.Events) != 1 {
		t.Fatalf("%d events", len(recorder.Events))
	}
	if event := <-recorder.Events; !strings.Contains(event, "PrezeroDaemonOlder") || !strings.Contains(event, "0.0.9") {
		t.Errorf("%s", event)
	}
}
