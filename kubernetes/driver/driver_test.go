// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"strings"
	"testing"

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
