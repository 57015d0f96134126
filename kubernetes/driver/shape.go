// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// A device can name the node's own resources that a claim takes. The field is alpha, and Kubernetes 1.37 has
// another one for it than 1.36 (k8s.io/api v0.37, resource/v1 types.go: 13 is tombstoned, 14 replaces it). An
// API server drops unknown fields. The modules of this driver have the second of them. Where the server has
// the first, slices are translated on their way out and on their way in. So the helper reads what it has
// written, and sees the slices of an earlier driver.
const (
	mappings  = "nodeAllocatableResourceMappings" // {RESOURCE: {capacityKey, allocationMultiplier}}
	resources = "nodeAllocatableResources"        // {RESOURCE: {mapping: {capacityKey, capacityMultiplier}}}
	renamed   = 37                                // the minor version of Kubernetes 1 that has the second
)

// IsRenamed tells whether the API server has the second field.
func IsRenamed(server discovery.ServerVersionInterface) (bool, error) {
	version, err := server.ServerVersion()
	if err != nil {
		return false, fmt.Errorf("the API server's version: %w", err)
	}
	// Some providers have a plus behind it.
	minor, err := strconv.Atoi(strings.TrimRight(version.Minor, "+"))
	if err != nil || version.Major != "1" {
		return false, fmt.Errorf("the API server's version is %s.%s, and 1.36 or later is needed", version.Major, version.Minor)
	}
	return minor >= renamed, nil
}

// Shape is which of the fields the API server has: asked when slices are first read, so that a driver starts
// without one.
type Shape struct {
	server           discovery.ServerVersionInterface
	mu               sync.Mutex
	known, isRenamed bool
}

// ShapeOf the API server of this configuration, which is for slices alone. They are translated where they must
// be, and travel as JSON: protobuf numbers only the fields known to the modules.
func ShapeOf(config *rest.Config) (*Shape, error) {
	server, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	shape := &Shape{server: server}
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	config.Wrap(shape.wrap)
	return shape, nil
}

func (s *Shape) wrap(next http.RoundTripper) http.RoundTripper { return translator{s, next} }

// asked tells whether slices need translation.
func (s *Shape) asked() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		is, err := IsRenamed(s.server)
		if err != nil {
			return false, err
		}
		s.known, s.isRenamed = true, is
	}
	return s.isRenamed, nil
}

// Watch ends with an error when the API server has another of the fields than it had: it was updated.
func (s *Shape) Watch(ctx context.Context, every time.Duration) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
		was, err := s.asked()
		// One that does not answer is asked again.
		if is, bad := IsRenamed(s.server); err == nil && bad == nil && is != was {
			return errors.New("the API server calls the mapping of devices by another name than before: start again")
		}
	}
}

type translator struct {
	shape *Shape
	next  http.RoundTripper
}

func (t translator) RoundTrip(request *http.Request) (*http.Response, error) {
	if !strings.Contains(request.URL.Path, "/resourceslices") {
		return t.next.RoundTrip(request)
	}
	isRenamed, err := t.shape.asked()
	if err != nil {
		return nil, err
	}
	if isRenamed {
		return t.next.RoundTrip(request)
	}
	if request.Body != nil && request.Body != http.NoBody {
		if !isJSON(request.Header) {
			return nil, fmt.Errorf("a slice as %q cannot be translated", request.Header.Get("Content-Type"))
		}
		text, err := io.ReadAll(&translated{from: request.Body, change: toBefore})
		request.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("a slice that cannot be translated: %w", err)
		}
		// A request is its caller's.
		request = request.Clone(request.Context())
		request.ContentLength = int64(len(text))
		request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
		request.Body, _ = request.GetBody()
	}
	response, err := t.next.RoundTrip(request)
	if err == nil && isJSON(response.Header) {
		response.Body = &translated{from: response.Body, change: toNow}
		response.ContentLength = -1
		response.Header.Del("Content-Length")
	}
	return response, err
}

func isJSON(header http.Header) bool {
	return strings.HasPrefix(header.Get("Content-Type"), "application/json")
}

// translated is a stream of JSON values, one or, of a watch, as they come.
type translated struct {
	from    io.ReadCloser
	change  func(device map[string]any)
	decoder *json.Decoder
	buffer  bytes.Buffer
}

func (t *translated) Close() error { return t.from.Close() }

func (t *translated) Read(to []byte) (int, error) {
	if t.buffer.Len() == 0 {
		if t.decoder == nil {
			t.decoder = json.NewDecoder(t.from)
			t.decoder.UseNumber()
		}
		var value any
		if err := t.decoder.Decode(&value); err != nil {
			return 0, err
		}
		eachDevice(value, t.change)
		if err := json.NewEncoder(&t.buffer).Encode(value); err != nil {
			return 0, err
		}
	}
	return t.buffer.Read(to)
}

// eachDevice of a slice, a list of slices, or an event about one.
func eachDevice(value any, change func(map[string]any)) {
	object, _ := value.(map[string]any)
	if event, is := object["object"]; is {
		eachDevice(event, change)
	}
	items, _ := object["items"].([]any)
	for _, item := range items {
		eachDevice(item, change)
	}
	spec, _ := object["spec"].(map[string]any)
	devices, _ := spec["devices"].([]any)
	for _, device := range devices {
		if device, is := device.(map[string]any); is {
			change(device)
		}
	}
}

// toNow makes the first field of a device the second.
func toNow(device map[string]any) {
	all, is := device[mappings].(map[string]any)
	if !is {
		return
	}
	made := map[string]any{}
	for name, one := range all {
		one, _ := one.(map[string]any)
		// Both are required there, and 1 is what the first field means without.
		multiplier, _ := one["allocationMultiplier"].(string)
		multiplier = cmp.Or(multiplier, "1")
		mapping := map[string]any{"deviceMultiplier": multiplier}
		if key, is := one["capacityKey"]; is {
			mapping = map[string]any{"capacityKey": key, "capacityMultiplier": multiplier}
		}
		made[name] = map[string]any{"mapping": mapping}
	}
	delete(device, mappings)
	device[resources] = made
}

// toBefore makes the second field of a device the first, as toNow has had it.
func toBefore(device map[string]any) {
	all, is := device[resources].(map[string]any)
	if !is {
		return
	}
	made := map[string]any{}
	for name, one := range all {
		one, _ := one.(map[string]any)
		mapping, _ := one["mapping"].(map[string]any)
		back := map[string]any{}
		for from, to := range map[string]string{"capacityKey": "capacityKey", "capacityMultiplier": "allocationMultiplier", "deviceMultiplier": "allocationMultiplier"} {
			if value, is := mapping[from]; is && !(to == "allocationMultiplier" && value == "1") {
				back[to] = value
			}
		}
		made[name] = back
	}
	delete(device, resources)
	device[mappings] = made
}
