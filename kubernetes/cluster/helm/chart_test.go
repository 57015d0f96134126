// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package helm has helm, for `cargo xtask cluster`, and what the chart is held against. In a module of
// its own, since helm knows far more modules than the driver.
package helm

import (
	"fmt"
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
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// rendered is the chart with values, as one text of documents.
func rendered(t *testing.T, values map[string]any) string {
	t.Helper()
	text, err := render(t, "prezero", values)
	must(t, err)
	return text
}

// render the release of that name; values may be refused.
func render(t *testing.T, name string, values map[string]any) (string, error) {
	t.Helper()
	chart, err := loader.Load("../../chart")
	must(t, err)
	must(t, chart.Validate())
	release := common.ReleaseOptions{Name: name, Namespace: "prezero", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, release, nil)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(chart, all)
	must(t, err)
	var documents []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") && strings.Contains(files[name], "kind:") {
			documents = append(documents, strings.TrimSpace(files[name])+"\n")
		}
	}
	return strings.Join(documents, "---\n"), nil
}

// objects of a rendering, each read by its type alone. Those of types that the modules lack are left out.
func objects(t *testing.T, text string) []runtime.Object {
	t.Helper()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var all []runtime.Object
	for document := range strings.SplitSeq(text, "\n---\n") {
		json, err := yaml.YAMLToJSONStrict([]byte(document))
		must(t, err)
		object, _, err := strict.Decode(json, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			continue
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		all = append(all, object)
	}
	return all
}

// sets are the DaemonSets of a rendering by name, after each document was read by its type alone.
func sets(t *testing.T, text string) map[string]*appsv1.DaemonSet {
	t.Helper()
	found := map[string]*appsv1.DaemonSet{}
	for _, object := range objects(t, text) {
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
		"logLevel": 5, "grace": "20m", "publish": map[string]any{"interval": "30s"}, "kubeAPI": map[string]any{"qps": 3},
		"image":       map[string]any{"name": "images.example/dra", "tag": "7"},
		"tolerations": []any{map[string]any{"operator": "Exists"}},
	}
	pod := sets(t, rendered(t, values))["prezero-dra"].Spec.Template.Spec
	container := pod.Containers[0]
	want := []string{"--kubelet=/k", "--cdi=/c", "--socket=/p/io.prezero.agent", "--health=:1234", "--node-allocatable", "--v=5", "--grace=20m", "--publish-interval=30s", "--kube-api-qps=3"}
	if slices.ContainsFunc(want, func(flag string) bool { return !slices.Contains(container.Args, flag) }) || container.Image != "images.example/dra:7" || container.Ports[0].ContainerPort != 1234 {
		t.Errorf("%+v", container)
	}
	var paths []string
	for nth, volume := range pod.Volumes {
		paths = append(paths, volume.HostPath.Path)
		if inside := container.VolumeMounts[nth].MountPath; inside != volume.HostPath.Path {
			t.Errorf("%s is %s inside", volume.HostPath.Path, inside)
		}
	}
	if !slices.Equal(paths, []string{"/k/plugins/prezero.io", "/k/plugins_registry", "/k/pod-resources", "/c", "/p"}) || len(pod.Tolerations) != 1 {
		t.Errorf("%v %v", paths, pod.Tolerations)
	}
}

// Promise P344 (pods): Two releases of the chart install side by side, and the chart refuses
// misspelt values.
func TestTwoReleasesShareNoObject(t *testing.T) {
	owner := map[string]string{}
	for _, release := range []string{"prezero", "large"} {
		values := map[string]any{
			"classes": map[string]any{"create": release == "prezero"}, "placeholder": map[string]any{"hugepages-2Mi": "1Gi"},
			"kubevirt": map[string]any{"enabled": true},
		}
		text, err := render(t, release, values)
		must(t, err)
		for _, object := range objects(t, text) {
			about, err := meta.Accessor(object)
			must(t, err)
			name := fmt.Sprintf("%T %s/%s", object, about.GetNamespace(), about.GetName())
			if other, is := owner[name]; is {
				t.Errorf("%s is of %s and of %s", name, other, release)
			}
			owner[name] = release
			if about.GetLabels()["app.kubernetes.io/instance"] != release {
				t.Errorf("%s has the labels %v", name, about.GetLabels())
			}
		}
	}
}

func TestEachKindOfNodesHasItsPlaceholder(t *testing.T) {
	all := sets(t, rendered(t, map[string]any{"placeholders": []any{
		map[string]any{"name": "large", "nodeSelector": map[string]any{"size": "large"}, "resources": map[string]any{"hugepages-1Gi": "512Gi"}},
		map[string]any{"name": "small", "nodeSelector": map[string]any{"size": "small"}, "resources": map[string]any{"hugepages-2Mi": "64Gi"}},
	}}))
	for name, pages := range map[string]string{"large": "hugepages-1Gi", "small": "hugepages-2Mi"} {
		set := all["prezero-placeholder-"+name]
		if set == nil {
			t.Fatalf("%v", all)
		}
		pod := set.Spec.Template.Spec
		want := map[string]string{"size": name, "prezero.io/daemon": "true"}
		if !maps.Equal(pod.NodeSelector, want) || quantities(pod.Containers[0].Resources.Limits)[pages] == "" {
			t.Errorf("%s: %v %v", name, pod.NodeSelector, pod.Containers[0].Resources)
		}
		if maps.Equal(set.Spec.Selector.MatchLabels, all["prezero-dra"].Spec.Selector.MatchLabels) {
			t.Errorf("%s selects the driver's pods", name)
		}
	}
}

// Promise P344.
func TestMisspeltAndMeaninglessValuesAreRefused(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"nodeallocatable": {"nodeallocatable": true},
		"plaecholder":     {"plaecholder": map[string]any{"hugepages-1Gi": "1Gi"}},
		"hugepages-":      {"placeholder": map[string]any{"memory": "1Gi"}},
		"grace":           {"grace": "10"},
		"interval":        {"publish": map[string]any{"intervall": "1s"}},
		"kubeletDir":      {"kubeletDir": "var/lib"},
		"rest":            {"rest": "much"},
		"healthPort":      {"healthPort": 70000},
	} {
		if _, err := render(t, "prezero", values); err == nil {
			t.Errorf("%s: %v is taken", name, values)
		}
	}
}

func TestWhatAnOperatorMayAddIsAdded(t *testing.T) {
	text := rendered(t, map[string]any{
		"image": map[string]any{"name": "r/i", "pullSecrets": []any{map[string]any{"name": "key"}}}, "podAnnotations": map[string]any{"a": "b"},
		"podLabels": map[string]any{"c": "d"}, "affinity": map[string]any{"nodeAffinity": map[string]any{}}, "seLinuxOptions": map[string]any{"type": "spc_t"},
		"updateStrategy": map[string]any{"type": "OnDelete", "rollingUpdate": nil}, "podMonitor": map[string]any{"enabled": true, "labels": map[string]any{"team": "x"}},
	})
	set := sets(t, text)["prezero-dra"]
	pod := set.Spec.Template
	if pod.Spec.ImagePullSecrets[0].Name != "key" || pod.Annotations["a"] != "b" || pod.Labels["c"] != "d" || pod.Spec.Affinity == nil ||
		pod.Spec.Containers[0].SecurityContext.SELinuxOptions.Type != "spc_t" || set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("%+v", set)
	}
	for _, part := range []string{"kind: PodMonitor", "path: /daemon/metrics", "team: x"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q", part)
		}
	}
	without := rendered(t, map[string]any{"admissionPolicy": false, "networkPolicy": false, "claimStatus": false, "classes": map[string]any{"create": false}})
	for _, part := range []string{"ValidatingAdmissionPolicy", "NetworkPolicy", "resourceclaims/status", "kind: DeviceClass"} {
		if !strings.Contains(text, part) || strings.Contains(without, part) {
			t.Errorf("%q is no switch", part)
		}
	}
}

func quantities(list corev1.ResourceList) map[string]string {
	all := map[string]string{}
	for name, quantity := range list {
		all[string(name)] = quantity.String()
	}
	return all
}
