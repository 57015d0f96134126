// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/version"
)

const (
	ofBefore = `"nodeAllocatableResourceMappings":{"hugepages-2Mi":{"capacityKey":"memory"}}`
	ofNow    = `"nodeAllocatableResources":{"hugepages-2Mi":{"mapping":{"capacityKey":"memory","capacityMultiplier":"1"}}}`
)

// like is text as JSON with its keys in order.
func like(t *testing.T, text string) string {
	t.Helper()
	var all []string
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var value any
		if err := decoder.Decode(&value); err == io.EOF {
			return strings.Join(all, "\n")
		} else if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		line, _ := json.Marshal(value)
		all = append(all, string(line))
	}
}

// before is a server that has the first field.
var before = &Shape{known: true}

type server func(*http.Request) *http.Response

func (s server) RoundTrip(r *http.Request) (*http.Response, error) { return s(r), nil }

// Promise P228.
func TestSlicesAreTranslatedForServersWithTheFirstMapping(t *testing.T) {
	slice := func(field string) string {
		return `{"kind":"ResourceSlice","spec":{"devices":[{"name":"a",` + field + `},{"name":"b","capacity":{"n":9007199254740993}}]}}`
	}
	list := func(field string) string { return `{"items":[` + slice(field) + `]}` }
	watch := func(field string) string {
		return `{"type":"ADDED","object":` + slice(field) + `}` + "\n" + `{"type":"BOOKMARK","object":{"spec":{}}}` + "\n"
	}
	for path, kinds := range map[string][]func(string) string{
		"/apis/resource.k8s.io/v1/resourceslices":                         {slice, list, watch},
		"/apis/resource.k8s.io/v1/resourceslices/one":                     {slice},
		"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/here": {slice},
	} {
		for _, kind := range kinds {
			out, back := kind(ofBefore), kind(ofNow)
			if !strings.Contains(path, "resourceslices") {
				out, back = kind(ofNow), kind(ofBefore)
			}
			got := ""
			through := before.wrap(server(func(r *http.Request) *http.Response {
				text, _ := io.ReadAll(r.Body)
				if int64(len(text)) != r.ContentLength {
					t.Errorf("%s: %d bytes, and %d are said", path, len(text), r.ContentLength)
				}
				got = string(text)
				return &http.Response{Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(kind(ofBefore)))}
			}))
			request, _ := http.NewRequest("PUT", "http://server"+path, strings.NewReader(kind(ofNow)))
			request.Header.Set("Content-Type", "application/json")
			response, err := through.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(response.Body)
			if err != nil || like(t, got) != like(t, out) || like(t, string(text)) != like(t, back) {
				t.Errorf("%s: %v\nsent %s\nwant %s\nread %s\nwant %s", path, err, got, out, text, back)
			}
		}
	}
}

func TestASliceThatCannotBeTranslatedIsNotSent(t *testing.T) {
	through := before.wrap(server(func(r *http.Request) *http.Response { t.Fatal("it was sent"); return nil }))
	for kind, body := range map[string]string{"application/vnd.kubernetes.protobuf": "k8s\x00", "application/json": `{"spec":`} {
		request, _ := http.NewRequest("POST", "http://server/apis/resource.k8s.io/v1/resourceslices", strings.NewReader(body))
		request.Header.Set("Content-Type", kind)
		if _, err := through.RoundTrip(request); err == nil || !strings.Contains(err.Error(), "translated") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestServerWithTheSecondFieldGetsSlicesAndSilentServerNone(t *testing.T) {
	request := func() *http.Request {
		made, _ := http.NewRequest("POST", "http://server/apis/resource.k8s.io/v1/resourceslices", strings.NewReader("as it is"))
		return made
	}
	got := ""
	to := server(func(r *http.Request) *http.Response {
		text, _ := io.ReadAll(r.Body)
		got = string(text)
		return &http.Response{Header: http.Header{}, Body: http.NoBody}
	})
	shape := &Shape{server: versioned("none")}
	if _, err := shape.wrap(to).RoundTrip(request()); err == nil || got != "" {
		t.Fatalf("%q was sent: %v", got, err)
	}
	shape.server = versioned("1.37")
	if _, err := shape.wrap(to).RoundTrip(request()); err != nil || got != "as it is" {
		t.Fatalf("%q was sent: %v", got, err)
	}
}

type versioned string

func (v versioned) ServerVersion() (*version.Info, error) {
	major, minor, _ := strings.Cut(string(v), ".")
	return &version.Info{Major: major, Minor: minor}, nil
}

// Promise P228.
func TestAServersVersionSaysWhichFieldItHas(t *testing.T) {
	for text, want := range map[versioned]bool{"1.34": false, "1.36": false, "1.36+": false, "1.37": true, "1.37+": true, "1.40": true} {
		if is, err := IsRenamed(text); err != nil || is != want {
			t.Errorf("%s: %v %v", text, is, err)
		}
	}
	for _, text := range []versioned{"1.", "1.x", "2.0", ""} {
		if _, err := IsRenamed(text); err == nil {
			t.Errorf("%q is a version", text)
		}
	}
}
