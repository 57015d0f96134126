// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Name of the driver, and vendor of its CDI devices.
const Name = "prezero.io"

// Capacity by which a claim says how much it wants.
const Capacity = "memory"

// mostBytes of one request: a pebibyte. Sums of what a claim may say stay far from overflow.
const mostBytes = 1 << 50

// plain names are those of requests and UIDs that the API server gives. They are parts of paths and of
// loans' names, where a dot ends one.
var plain = regexp.MustCompile(`^[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?$`)

// Parameters is what a claim may say besides its capacity, as opaque configuration.
type Parameters struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// UID and GID own the file, which is of mode 0600: the user that the container runs as.
	UID *uint32 `json:"uid,omitempty"`
	GID *uint32 `json:"gid,omitempty"`
	// Owner and Keep: a later pod of the namespace finds the content that this one leaves, for this
	// time, as 10m. For claims that a person makes; claims of a pod's template may have neither.
	Owner string `json:"owner,omitempty"`
	Keep  string `json:"keep,omitempty"`
	// Launcher is for classes alone: the container borrows by itself, through the preload library. It gets the
	// library and the daemon's socket in place of a loan, and the claim counts what it will borrow.
	Launcher bool `json:"launcher,omitempty"`
}

// owners are names without a dot, which separates them from that of the request.
var owners = regexp.MustCompile(`^[0-9A-Za-z_]{1,32}$`)

// keeps is for how long content is kept, in seconds: 0 for no owner.
func (p Parameters) keeps() (int64, error) {
	if p.Owner == "" && p.Keep == "" {
		return 0, nil
	}
	if !owners.MatchString(p.Owner) {
		return 0, fmt.Errorf("parameters of %s: owner %q: write 1 to 32 letters, digits and underscores", Name, p.Owner)
	}
	long, err := time.ParseDuration(p.Keep)
	if err != nil || long < time.Second || long%time.Second != 0 {
		return 0, fmt.Errorf("parameters of %s: keep %q: write for how long the content of owner %q stays, as 90s or 10m", Name, p.Keep, p.Owner)
	}
	return int64(long / time.Second), nil
}

// mayKeep refuses owners to claims that end with their pod, of a template or of an extended
// resource. All pods of a set would share one owner, and so would every user that may make pods, by
// any template.
func mayKeep(claim *resourceapi.ResourceClaim, all []allotted) error {
	for _, one := range all {
		isOfPod := slices.ContainsFunc(claim.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.Kind == "Pod" })
		_, isOfTemplate := claim.Annotations[resourceapi.PodResourceClaimAnnotation]
		if one.config.Owner != "" && (isOfPod || isOfTemplate) {
			return fmt.Errorf("parameters of %s: owner %q: claim %q is made from a template and ends with its pod: make a ResourceClaim yourself, and name it in the pod (resourceClaimName)", Name, one.config.Owner, claim.Name)
		}
	}
	return nil
}

// allotted is one device of a claim: one loan.
type allotted struct {
	index   int
	result  resourceapi.DeviceRequestAllocationResult
	kind    kind
	bytes   int64
	request string
	config  Parameters
	// How many seconds its content is kept for that owner, each file's apart.
	keep  int64
	owner string
}

// mark of this driver's loans in their names. The daemon has loans of other agents, too.
const mark = "k8s."

// loanName is the same for every caller and every repetition: <scope>/k8s.<claim>.<index>. It has at most 118
// characters, which is the daemon's bound.
func loanName(scope string, uid types.UID, index int) string {
	return fmt.Sprintf("%s/%s%s.%d", scope, mark, uid, index)
}

// claimOf a loan by its name: the scope, the namespace and the claim's UID. Loans of other agents have none.
func claimOf(name string) (scope, namespace string, uid types.UID, isOurs bool) {
	scope, rest, _ := strings.Cut(name, "/")
	namespace, tag, _ := strings.Cut(scope, "@")
	claim, index, _ := strings.Cut(strings.TrimPrefix(rest, mark), ".")
	_, err := strconv.Atoi(index)
	isOurs = strings.HasPrefix(rest, mark) && namespace != "" && len(tag) == tagLength && err == nil && plain.MatchString(claim)
	return scope, namespace, types.UID(claim), isOurs
}

// Scope of a namespace's loans: <namespace>@<tag of its UID>. The daemon counts quotas by the namespace's
// name and finds kept content by the whole scope. The tag is 50 bits of a hash, so that the longest names
// fit. To meet an earlier tag, a tenant has to recreate a namespace of the same name 2^50 times.
func Scope(namespace string, uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return namespace + "@" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:tagLength]
}

// tagLength is the length of a scope's tag, at 5 bits a character.
const tagLength = 10

// place of a device in the container.
type place struct{ path, variable string }

// places of all devices of a claim. No two may be one, nor may one's size be where another's path is.
func places(all []allotted) ([]place, error) {
	var found []place
	seen, taken := map[string]int{}, map[string]string{}
	for _, one := range all {
		name := one.request
		if seen[name]++; seen[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, seen[name])
		}
		p := place{"/dev/prezero/" + name, "PREZERO_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))}
		for _, word := range []string{p.variable, p.variable + "_BYTES"} {
			if other, is := taken[word]; is {
				return nil, fmt.Errorf("requests %q and %q would both be %s in the container: give one another name", other, one.request, word)
			}
			taken[word] = one.request
		}
		found = append(found, p)
	}
	return found, nil
}

// allocation is what of a claim is this driver's.
func allocation(claim *resourceapi.ResourceClaim) ([]allotted, error) {
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s/%s is not allocated", claim.Namespace, claim.Name)
	}
	devices := claim.Status.Allocation.Devices
	var all []allotted
	seen := map[string]int{}
	for index, result := range devices.Results {
		if result.Driver != Name {
			continue
		}
		one := allotted{index: index, result: result}
		var err error
		if one.kind, err = parseDevice(result.Device); err != nil {
			return nil, err
		}
		capacity, ok := result.ConsumedCapacity[Capacity]
		// Before its value is taken, which of a quantity beyond 64 bits is any.
		if capacity.CmpInt64(mostBytes) > 0 {
			return nil, fmt.Errorf("request %q wants %s bytes, which no node has", result.Request, capacity.String())
		}
		if !ok || capacity.Value() <= 0 {
			return nil, fmt.Errorf("request %q says no capacity %q: write capacity.requests.%s. If it is there, the API server dropped it: it needs Kubernetes 1.36, or the feature gate DRAConsumableCapacity", result.Request, Capacity, Capacity)
		}
		one.bytes = capacity.Value()
		one.request, _, _ = strings.Cut(result.Request, "/")
		// It becomes part of a path.
		if !plain.MatchString(one.request) {
			return nil, fmt.Errorf("request %q: not a name of letters, digits and hyphens", result.Request)
		}
		if one.config, err = parameters(devices.Config, one.request, result.Request); err != nil {
			return nil, err
		}
		if one.keep, err = one.config.keeps(); err != nil {
			return nil, err
		}
		if one.config.Launcher && (one.config.UID != nil || one.config.GID != nil || one.keep > 0) {
			return nil, fmt.Errorf("request %q of a launcher's class: its memory has no file, so leave uid, gid, owner and keep away", result.Request)
		}
		if one.keep > 0 {
			// No request has an underscore.
			request := strings.ReplaceAll(one.request, "-", "_")
			if seen[request]++; seen[request] > 1 {
				request = fmt.Sprintf("%s.%d", request, seen[request])
			}
			one.owner = one.config.Owner + "." + request
		}
		all = append(all, one)
	}
	return all, mayKeep(claim, all)
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
			if one.Launcher && source != resourceapi.AllocationConfigSourceClass {
				return found, fmt.Errorf("parameters of %s: launcher: only a device class may say it, because it opens the daemon's socket to the pod", Name)
			}
			found.Launcher = found.Launcher || one.Launcher
			if one.UID != nil {
				found.UID = one.UID
			}
			if one.GID != nil {
				found.GID = one.GID
			}
			if one.Owner != "" || one.Keep != "" {
				found.Owner, found.Keep = one.Owner, one.Keep
			}
		}
	}
	return found, nil
}
