// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"prezero-dra/driver"
)

// objects of a manifest, with the fields that their types have.
func objects(t *testing.T, path string) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	var all []runtime.Object
	for {
		buffer := make([]byte, len(text))
		n, err := reader.Read(buffer)
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		json, err := yaml.ToJSON(buffer[:n])
		must(t, err)
		object, _, err := strict.Decode(json, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, object)
	}
}

func find[T any](t *testing.T, all []runtime.Object) T {
	t.Helper()
	for _, object := range all {
		if found, ok := object.(T); ok {
			return found
		}
	}
	t.Fatalf("none of %T", *new(T))
	panic("unreachable")
}

// Promise P144 (pods): The driver's pod has no privilege beyond uid 0 without capabilities, and no
// right in the cluster that it does not use.
func TestTheManifestsAreWhatTheDriverNeedsAndNoMore(t *testing.T) {
	all := objects(t, "deploy/prezero.yaml")
	set := find[*appsv1.DaemonSet](t, all)
	pod := set.Spec.Template.Spec
	secure := pod.Containers[0].SecurityContext
	if *secure.Privileged || *secure.AllowPrivilegeEscalation || !*secure.ReadOnlyRootFilesystem || pod.HostNetwork || pod.HostPID || secure.Capabilities.Drop[0] != "ALL" {
		t.Errorf("%+v", secure)
	}
	if set.Spec.UpdateStrategy.RollingUpdate.MaxSurge.String() != "10%" || set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
		t.Errorf("%+v", set.Spec.UpdateStrategy)
	}
	var paths []string
	for _, volume := range pod.Volumes {
		paths = append(paths, volume.HostPath.Path)
	}
	want := []string{"/var/lib/kubelet/plugins/" + driver.Name, "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/pod-resources", "/var/run/cdi", "/run/prezero"}
	if !slices.Equal(paths, want) {
		t.Errorf("%v", paths)
	}
	var rules []string
	for _, rule := range find[*rbacv1.ClusterRole](t, all).Rules {
		rules = append(rules, strings.Join(rule.Resources, ",")+" "+strings.Join(rule.Verbs, ","))
	}
	if !slices.Equal(rules, []string{"resourceclaims get,list", "resourceclaims/status patch", "resourceclaims/driver associated-node:patch", "resourceslices get,list,watch,create,update,delete", "namespaces get", "nodes get"}) {
		t.Errorf("%v", rules)
	}
	class := find[*resourceapi.DeviceClass](t, all)
	if !strings.Contains(class.Spec.Selectors[0].CEL.Expression, driver.Name) {
		t.Errorf("%+v", class.Spec)
	}
	claim := find[*resourceapi.ResourceClaimTemplate](t, objects(t, "deploy/example.yaml"))
	for _, sub := range claim.Spec.Spec.Devices.Requests[0].FirstAvailable {
		if bytes := sub.Capacity.Requests[driver.Capacity]; bytes.Value() != 256<<20 {
			t.Errorf("%+v", sub)
		}
	}
	owned := find[*resourceapi.ResourceClaim](t, objects(t, "deploy/owner.yaml"))
	var says driver.Parameters
	if err := json.Unmarshal(owned.Spec.Devices.Config[0].Opaque.Parameters.Raw, &says); err != nil || says.Owner != "cache" || says.Keep != "10m" {
		t.Errorf("%+v %v", says, err)
	}
}
