// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package helm has helm, for `cargo xtask cluster`, and what the chart is held against. In a module of
// its own, since helm knows far more modules than the driver.
package helm

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// rendered is the chart with values, as one text of documents.
func rendered(t *testing.T, values map[string]any) string {
	t.Helper()
	chart, err := loader.Load("../../chart")
	must(t, err)
	must(t, chart.Validate())
	release := common.ReleaseOptions{Name: "prezero", Namespace: "prezero", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, release, nil)
	must(t, err)
	files, err := engine.Render(chart, all)
	must(t, err)
	var documents []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") && strings.Contains(files[name], "kind:") {
			documents = append(documents, strings.TrimSpace(files[name])+"\n")
		}
	}
	return strings.Join(documents, "---\n")
}

// sets are the DaemonSets of a rendering by name, after each document was read by its type alone.
func sets(t *testing.T, text string) map[string]*appsv1.DaemonSet {
	t.Helper()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	found := map[string]*appsv1.DaemonSet{}
	for document := range strings.SplitSeq(text, "\n---\n") {
		json, err := yaml.YAMLToJSONStrict([]byte(document))
		must(t, err)
		object, _, err := strict.Decode(json, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if set, ok := object.(*appsv1.DaemonSet); ok {
			found[set.Name] = set
		}
	}
	return found
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const written = "../../deploy/prezero.yaml"

// The manifest for those without helm is the chart with its own values. PREZERO_WRITE=1 writes it.
func TestTheManifestIsTheChart(t *testing.T) {
	text := rendered(t, map[string]any{"createNamespace": true})
	if os.Getenv("PREZERO_WRITE") != "" {
		must(t, os.WriteFile(written, []byte(text), 0o644))
	}
	there, err := os.ReadFile(written)
	must(t, err)
	if string(there) != text {
		t.Errorf("%s is not what the chart says: run PREZERO_WRITE=1 go test in kubernetes/cluster/helm", written)
	}
	if all := sets(t, text); len(all) != 1 || all["prezero-dra"] == nil {
		t.Errorf("%v", all)
	}
}

func TestAPlaceholderRequestsThePoolAndIsNeverThereTwice(t *testing.T) {
	all := sets(t, rendered(t, map[string]any{"placeholder": map[string]any{"hugepages-1Gi": "64Gi"}}))
	set := all["prezero-placeholder"]
	if set == nil {
		t.Fatalf("%v", all)
	}
	container := set.Spec.Template.Spec.Containers[0]
	for _, list := range []map[string]string{quantities(container.Resources.Requests), quantities(container.Resources.Limits)} {
		if list["hugepages-1Gi"] != "64Gi" || list["memory"] == "" {
			t.Errorf("%v", list)
		}
	}
	// Two at a time would want the pool twice, and the second would wait for ever.
	if update := set.Spec.UpdateStrategy.RollingUpdate; update != nil && update.MaxSurge != nil {
		t.Errorf("%+v", update)
	}
	if !slices.Equal(container.Args, []string{"--placeholder"}) {
		t.Errorf("%v", container.Args)
	}
}

func TestEveryPathAndSwitchIsAValue(t *testing.T) {
	values := map[string]any{
		"kubeletDir": "/k", "cdiDir": "/c", "prezeroDir": "/p", "healthPort": 1234, "nodeAllocatable": true,
		"image":       map[string]any{"name": "images.example/dra", "tag": "7"},
		"tolerations": []any{map[string]any{"operator": "Exists"}},
	}
	pod := sets(t, rendered(t, values))["prezero-dra"].Spec.Template.Spec
	container := pod.Containers[0]
	want := []string{"--kubelet=/k", "--cdi=/c", "--socket=/p/io.prezero.agent", "--health=:1234", "--node-allocatable"}
	if !slices.Equal(container.Args, want) || container.Image != "images.example/dra:7" || container.ReadinessProbe.HTTPGet.Port.IntValue() != 1234 {
		t.Errorf("%+v", container)
	}
	var paths []string
	for nth, volume := range pod.Volumes {
		paths = append(paths, volume.HostPath.Path)
		if inside := container.VolumeMounts[nth].MountPath; inside != volume.HostPath.Path {
			t.Errorf("%s is %s inside", volume.HostPath.Path, inside)
		}
	}
	if !slices.Equal(paths, []string{"/k/plugins/prezero.io", "/k/plugins_registry", "/c", "/p"}) || len(pod.Tolerations) != 1 {
		t.Errorf("%v %v", paths, pod.Tolerations)
	}
}

func quantities(list corev1.ResourceList) map[string]string {
	all := map[string]string{}
	for name, quantity := range list {
		all[string(name)] = quantity.String()
	}
	return all
}
