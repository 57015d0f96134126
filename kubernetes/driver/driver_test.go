// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"errors"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	name := loanName(strings.Repeat("n", 63), "01234567-89ab-cdef-0123-456789abcdef", 31)
	if len(name) > 110 {
		t.Fatalf("%q has %d characters, and the daemon takes 110", name, len(name))
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
}
