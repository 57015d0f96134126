// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Name of the driver, and vendor of its CDI devices.
const Name = "prezero.io"

// Capacity by which a claim says how much it wants.
const Capacity = "memory"

// Parameters is what a claim may say besides its capacity, as opaque configuration.
type Parameters struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// UID and GID own the file, which is of mode 0600: the user that the container runs as.
	UID *uint32 `json:"uid,omitempty"`
	GID *uint32 `json:"gid,omitempty"`
}

// allotted is one device of a claim: one loan.
type allotted struct {
	index   int
	result  resourceapi.DeviceRequestAllocationResult
	bytes   int64
	node    int64
	page    int64
	ready   bool
	request string
	config  Parameters
}

// loanName is the same whoever asks for it and how often: <namespace>/<claim>.<index>.
func loanName(namespace string, uid types.UID, index int) string {
	return fmt.Sprintf("%s%d", loanPrefix(namespace, uid), index)
}

func loanPrefix(namespace string, uid types.UID) string {
	return fmt.Sprintf("%s/%s.", namespace, uid)
}

func deviceName(node, page int64, ready bool) string {
	state := "rest"
	if ready {
		state = "ready"
	}
	return fmt.Sprintf("node%d-%dk-%s", node, page>>10, state)
}

func parseDevice(name string) (node, page int64, ready bool, err error) {
	var state string
	if _, err = fmt.Sscanf(strings.ReplaceAll(name, "-", " "), "node%d %dk %s", &node, &page, &state); err == nil {
		page <<= 10
		ready = state == "ready"
		if deviceName(node, page, ready) == name {
			return node, page, ready, nil
		}
	}
	return 0, 0, false, fmt.Errorf("%q is no device of %s", name, Name)
}

// allocation is what of a claim is this driver's.
func allocation(claim *resourceapi.ResourceClaim) ([]allotted, error) {
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s/%s is not allocated", claim.Namespace, claim.Name)
	}
	devices := claim.Status.Allocation.Devices
	var all []allotted
	for index, result := range devices.Results {
		if result.Driver != Name {
			continue
		}
		one := allotted{index: index, result: result}
		var err error
		if one.node, one.page, one.ready, err = parseDevice(result.Device); err != nil {
			return nil, err
		}
		capacity, ok := result.ConsumedCapacity[Capacity]
		if !ok || capacity.Value() <= 0 {
			return nil, fmt.Errorf("request %q says no capacity %q: write capacity.requests.%s", result.Request, Capacity, Capacity)
		}
		one.bytes = capacity.Value()
		one.request, _, _ = strings.Cut(result.Request, "/")
		if one.config, err = parameters(devices.Config, one.request, result.Request); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// parameters that hold for a request: those of the claim go over those of the class.
func parameters(configs []resourceapi.DeviceAllocationConfiguration, names ...string) (Parameters, error) {
	var found Parameters
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim} {
		for _, config := range configs {
			isMeant := len(config.Requests) == 0 || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(config.Requests, name) })
			if config.Source != source || config.Opaque == nil || config.Opaque.Driver != Name || !isMeant {
				continue
			}
			var one Parameters
			decoder := json.NewDecoder(bytes.NewReader(config.Opaque.Parameters.Raw))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&one); err != nil {
				return found, fmt.Errorf("parameters of %s: %w", Name, err)
			}
			if one.APIVersion != Name+"/v1alpha1" || one.Kind != "Loan" {
				return found, fmt.Errorf("parameters of %s: apiVersion %q, kind %q: write %s/v1alpha1 and Loan", Name, one.APIVersion, one.Kind, Name)
			}
			if one.UID != nil {
				found.UID = one.UID
			}
			if one.GID != nil {
				found.GID = one.GID
			}
		}
	}
	return found, nil
}
