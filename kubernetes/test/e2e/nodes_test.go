// SPDX-License-Identifier: Apache-2.0 OR MIT

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ktypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/e2e-framework/klient"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

type klientObject = k8s.Object

func patch(text string) k8s.Patch {
	return k8s.Patch{PatchType: ktypes.StrategicMergePatchType, Data: []byte(text)}
}

// step is one step of a feature. It may fail.
type step func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error

// feature runs steps on two nodes. Both drivers serve before it, and no pod or loan is left after it.
func feature(t *testing.T, name string, assess map[string]step, order ...string) {
	t.Helper()
	do := func(what string, one step) features.Func {
		return func(ctx context.Context, t *testing.T, config *envconf.Config) context.Context {
			t.Helper()
			client := config.Client()
			clients, err := kubernetes.NewForConfig(client.RESTConfig())
			if err == nil {
				err = one(ctx, t, client, clients)
			}
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			return ctx
		}
	}
	built := features.New(name).WithSetup("two nodes", do("setup", func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
		if err := install("prezero", "prezero"); err != nil {
			return err
		}
		if err := startSecond(ctx, client); err != nil {
			return err
		}
		if err := serves(ctx, clients, "prezero", "prezero", 2); err != nil {
			return err
		}
		return published(ctx, clients)
	}))
	for _, what := range order {
		built = built.Assess(what, do(what, assess[what]))
	}
	testenv.Test(t, built.WithTeardown("nothing is left", do("teardown", func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
		kubectl("delete", "pods", "-n", namespace, "-l", "test=fleet", "--force", "--grace-period=0")
		kubectl("delete", "resourceclaims", "-n", namespace, "--all", "--wait=false")
		return have(ctx, 0, 0)
	})).Feature())
}

// published waits until both nodes have devices without a taint.
func published(ctx context.Context, clients kubernetes.Interface) error {
	return eventually(ctx, "both nodes have devices", func(ctx context.Context) (bool, error) {
		slices, err := clients.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil
		}
		good := map[string]bool{}
		for _, slice := range slices.Items {
			if slice.Spec.NodeName != nil && len(slice.Spec.Devices) > 0 && len(slice.Spec.Devices[0].Taints) == 0 {
				good[*slice.Spec.NodeName] = true
			}
		}
		return good[first] && good[secondName], nil
	})
}

const template = "zeroed-64m"

// makeClaim makes a claim as docs/guides/kubernetes-content.md describes.
func makeClaim() error {
	_, err := kubectl("apply", "-n", namespace, "-f", source+"/deploy/owner.yaml")
	return err
}

// Promise P340.
func TestTwoNodesThatAreResetKeepNoLoan(t *testing.T) {
	feature(t, "node reset", map[string]step{
		"pods run on both": func(ctx context.Context, t *testing.T, client klient.Client, _ *kubernetes.Clientset) error {
			if err := running(ctx, client, pod("stays", first, template, ""), pod("a", secondName, template, "")); err != nil {
				return err
			}
			return have(ctx, 1, 1)
		},
		"the second is reset and joins again": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			second.kill("kubelet")
			if err := second.killContainers(); err != nil {
				return err
			}
			if err := second.run("sh", "-c", `umount -l $(awk '$2 ~ "^/var/lib/kubelet/" {print $2}' /proc/self/mounts) 2>/dev/null; rm -rf /var/lib/kubelet/* /run/cni/* /run/cdi/*`); err != nil {
				return err
			}
			for _, words := range [][]string{{"delete", "node", secondName}, {"delete", "pod", "-n", namespace, "a", "--force", "--grace-period=0"}} {
				if _, err := kubectl(words...); err != nil {
					return err
				}
			}
			if there, err := loans(ctx, secondName); err != nil || len(there) != 1 {
				return fmt.Errorf("this shows nothing: %v %v", there, err)
			}
			if err := second.startKubelet(); err != nil {
				return err
			}
			return second.join(ctx, client)
		},
		"its loan is returned, and the other's is not": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			if err := serves(ctx, clients, "prezero", "prezero", 2); err != nil {
				return err
			}
			return have(ctx, 1, 0)
		},
	}, "pods run on both", "the second is reset and joins again", "its loan is returned, and the other's is not")
}

func TestTwoNodesLendToOneOfThemWhenAClaimMoves(t *testing.T) {
	feature(t, "moved claim", map[string]step{
		"a pod runs on a person's claim": func(ctx context.Context, t *testing.T, client klient.Client, _ *kubernetes.Clientset) error {
			if err := makeClaim(); err != nil {
				return err
			}
			if err := running(ctx, client, pod("c1", secondName, "", "cache")); err != nil {
				return err
			}
			return have(ctx, 0, 1)
		},
		"its kubelet forgets, and the next pod is elsewhere": func(ctx context.Context, t *testing.T, client klient.Client, _ *kubernetes.Clientset) error {
			second.kill("kubelet")
			if err := second.run("sh", "-c", "for c in $(ctr -n k8s.io tasks ls -q); do ctr -n k8s.io tasks kill -s KILL $c || true; done; rm -f /var/lib/kubelet/dra_manager_state"); err != nil {
				return err
			}
			if _, err := kubectl("delete", "pod", "-n", namespace, "c1", "--force", "--grace-period=0"); err != nil {
				return err
			}
			if _, err := claimed(ctx, client, "cache", func(claim *resourceapi.ResourceClaim) bool { return len(claim.Status.ReservedFor) == 0 }); err != nil {
				return err
			}
			if err := running(ctx, client, pod("c2", first, "", "cache")); err != nil {
				return err
			}
			return second.startKubelet()
		},
		"the first node alone has a loan": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			return have(ctx, 1, 0)
		},
	}, "a pod runs on a person's claim", "its kubelet forgets, and the next pod is elsewhere", "the first node alone has a loan")
}

func TestTwoNodesFindALostRecordAndACutOffPrepare(t *testing.T) {
	records := "/var/lib/kubelet/plugins/prezero.io/claims"
	feature(t, "lost record", map[string]step{
		"a record is lost, and written anew": func(ctx context.Context, t *testing.T, client klient.Client, _ *kubernetes.Clientset) error {
			if err := running(ctx, client, pod("r", secondName, template, "")); err != nil {
				return err
			}
			if err := second.run("sh", "-c", "rm "+records+"/*.json"); err != nil {
				return err
			}
			return eventually(ctx, "the record is there again", func(context.Context) (bool, error) {
				return second.run("sh", "-c", "ls "+records+"/*.json") == nil, nil
			})
		},
		"one whose claim went meanwhile is returned": func(ctx context.Context, t *testing.T, client klient.Client, _ *kubernetes.Clientset) error {
			if err := second.run("sh", "-c", "rm "+records+"/*.json"); err != nil {
				return err
			}
			if _, err := kubectl("delete", "pod", "-n", namespace, "r"); err != nil {
				return err
			}
			return have(ctx, 0, 0)
		},
		"a prepare that is cut off leaves nothing": func(ctx context.Context, t *testing.T, client klient.Client, _ *kubernetes.Clientset) error {
			for nth := range 5 {
				one := pod(fmt.Sprintf("cut%d", nth), secondName, template, "")
				if err := client.Resources().Create(ctx, one); err != nil {
					return err
				}
				time.Sleep(time.Duration(rand.N(1200)) * time.Millisecond)
				for _, pid := range processes("prezero-dra") {
					syscall.Kill(pid, syscall.SIGKILL)
				}
				if err := client.Resources().Delete(ctx, one, resources.WithGracePeriod(0)); err != nil {
					return err
				}
			}
			return have(ctx, 0, 0)
		},
	}, "a record is lost, and written anew", "one whose claim went meanwhile is returned", "a prepare that is cut off leaves nothing")
}

// Promise P343 (pods): The token of one node's driver writes the slices of that node and driver
// alone.
func TestTwoNodesMayEachWriteItsOwnSlicesAlone(t *testing.T) {
	feature(t, "admission policy", map[string]step{
		"with the token of the first node's driver": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			pods, err := clients.CoreV1().Pods("prezero").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=driver", FieldSelector: "spec.nodeName=" + first})
			if err != nil || len(pods.Items) == 0 {
				return fmt.Errorf("no driver: %v", err)
			}
			token, err := kubectl("create", "token", "prezero-dra", "-n", "prezero", "--bound-object-kind", "Pod", "--bound-object-name", pods.Items[0].Name)
			if err != nil {
				return err
			}
			config := *client.RESTConfig()
			config.BearerToken = strings.TrimSpace(token)
			thief, err := kubernetes.NewForConfig(&config)
			if err != nil {
				return err
			}
			all := thief.ResourceV1().ResourceSlices()
			slices, err := all.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			tried := 0
			for _, slice := range slices.Items {
				isOwn := *slice.Spec.NodeName == first
				_, err := all.Update(ctx, &slice, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
				deleted := all.Delete(ctx, slice.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
				if isOwn != (err == nil) || isOwn != (deleted == nil) {
					t.Errorf("a slice of %s: update %v, delete %v", *slice.Spec.NodeName, err, deleted)
				}
				tried++
			}
			if tried < 2 {
				t.Errorf("%d slices: this shows nothing", tried)
			}
			stolen := func(driver, node string) error {
				_, err := all.Create(ctx, &resourceapi.ResourceSlice{
					ObjectMeta: metav1.ObjectMeta{Name: "stolen"},
					Spec:       resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: "p", Generation: 9, ResourceSliceCount: 1}},
				}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				return err
			}
			if err := stolen("prezero.io", first); err != nil {
				t.Errorf("its own: %v", err)
			}
			for _, other := range [][2]string{{"gpu.example.com", first}, {"prezero.io", secondName}} {
				if err := stolen(other[0], other[1]); err == nil || !strings.Contains(err.Error(), "alone") {
					t.Errorf("%v: %v", other, err)
				}
			}
			return nil
		},
	}, "with the token of the first node's driver")
}

// Promise P345.
func TestTwoNodesSayInAClaimsStatusWhatPodsGot(t *testing.T) {
	feature(t, "claim status", map[string]step{
		"bytes and path": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			if err := makeClaim(); err != nil {
				return err
			}
			if err := running(ctx, client, pod("s", secondName, "", "cache")); err != nil {
				return err
			}
			claim, err := claimed(ctx, client, "cache", func(claim *resourceapi.ResourceClaim) bool { return len(claim.Status.Devices) == 1 })
			if err != nil {
				return err
			}
			var data struct {
				Path  string
				Bytes int64
			}
			if err := json.Unmarshal(claim.Status.Devices[0].Data.Raw, &data); err != nil || data.Path != "/dev/prezero/mem" || data.Bytes != 64<<20 {
				return fmt.Errorf("%s: %w", claim.Status.Devices[0].Data.Raw, err)
			}
			return eventually(ctx, "the pod's status has the device's health", func(ctx context.Context) (bool, error) {
				one, err := clients.CoreV1().Pods(namespace).Get(ctx, "s", metav1.GetOptions{})
				if err != nil || len(one.Status.ContainerStatuses) == 0 {
					return false, nil
				}
				for _, of := range one.Status.ContainerStatuses[0].AllocatedResourcesStatus {
					for _, health := range of.Resources {
						if health.Health == corev1.ResourceHealthStatusHealthy {
							return true, nil
						}
					}
				}
				return false, nil
			})
		},
	}, "bytes and path")
}

// Promise P344.
func TestTwoNodesOfTwoReleasesServeSideBySide(t *testing.T) {
	feature(t, "two releases", map[string]step{
		"one for each kind of node": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			on := func(name string) string { return `nodeSelector.kubernetes\.io/hostname=` + name }
			if err := install("prezero", "prezero", on(first)); err != nil {
				return err
			}
			if err := install("large", "large", on(secondName), "classes.create=false", "placeholder.hugepages-2Mi=2Mi"); err != nil {
				return err
			}
			defer func() {
				uninstall("large", "large")
				kubectl("delete", "namespace", "large", "--wait=false")
				install("prezero", "prezero")
			}()
			if err := serves(ctx, clients, "prezero", "prezero", 1); err != nil {
				return err
			}
			if err := serves(ctx, clients, "large", "large", 1); err != nil {
				return err
			}
			if err := running(ctx, client, pod("one", first, template, ""), pod("two", secondName, template, "")); err != nil {
				return err
			}
			if err := have(ctx, 1, 1); err != nil {
				return err
			}
			for _, name := range []string{"one", "two"} {
				if _, err := kubectl("delete", "pod", "-n", namespace, name); err != nil {
					return err
				}
			}
			return have(ctx, 0, 0)
		},
	}, "one for each kind of node")
}

// KubeVirt's own programs are not here: pods with the labels and requests of its launchers stand for them.
func TestTwoNodesGiveKubeVirtsLaunchersTheLibrary(t *testing.T) {
	feature(t, "kubevirt", map[string]step{
		"launchers with huge pages, and no other pod": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			if err := install("prezero", "prezero", "kubevirt.enabled=true"); err != nil {
				return err
			}
			defer install("prezero", "prezero")
			made := func(label, container, pages string) (*corev1.Pod, error) {
				one := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-vm", Namespace: namespace, Labels: map[string]string{"kubevirt.io": label}}}
				resources := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
				if pages != "" {
					resources[corev1.ResourceName("hugepages-2Mi")] = resource.MustParse(pages)
				}
				one.Spec.Containers = []corev1.Container{{Name: container, Image: "x", Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources}}, {Name: "sidecar", Image: "x"}}
				return clients.CoreV1().Pods(namespace).Create(ctx, one, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			}
			has := func(one *corev1.Pod) (library, mounts int) {
				for nth, container := range one.Spec.Containers {
					for _, env := range container.Env {
						if env.Name == "LD_PRELOAD" && env.Value == "/usr/lib/prezero/libprezero_preload.so" && nth == 0 {
							library++
						}
					}
					for _, mount := range container.VolumeMounts {
						if strings.HasPrefix(mount.Name, "prezero-") {
							mounts++
						}
					}
				}
				return library, mounts
			}
			// The API server takes a policy a moment after it is made.
			if err := eventually(ctx, "a launcher has the library and both mounts", func(context.Context) (bool, error) {
				one, err := made("virt-launcher", "compute", "1Gi")
				if err != nil {
					return false, nil
				}
				library, mounts := has(one)
				return library == 1 && mounts == 2 && len(one.Spec.Volumes) >= 2, nil
			}); err != nil {
				return err
			}
			for _, other := range [][3]string{{"virt-launcher", "compute", ""}, {"virt-handler", "compute", "1Gi"}, {"virt-launcher", "other", "1Gi"}} {
				one, err := made(other[0], other[1], other[2])
				if err != nil {
					return err
				}
				if library, mounts := has(one); library+mounts > 0 {
					t.Errorf("%v has the library", other)
				}
			}
			return nil
		},
	}, "launchers with huge pages, and no other pod")
}

// launcherTemplate is a claim of a launcher's class: 64 MiB, counted and not lent.
const launcherTemplate = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaimTemplate","metadata":{"name":"launcher-64m"},"spec":{"spec":{"devices":{"requests":[
{"name":"memory","exactly":{"deviceClassName":"prezero-launcher","capacity":{"requests":{"memory":"64Mi"}}}}]}}}}`

// Promise P390 (pods): A launcher with the annotation of a claim's template runs with the library and the
// daemon's socket, has no path of the node in its pod, and holds no loan but the memory that it counts.
func TestTwoNodesGiveALaunchersClaimTheLibrary(t *testing.T) {
	feature(t, "launcher's claim", map[string]step{
		"a launcher with a claim runs": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			library := t.TempDir() + "/libprezero_preload.so"
			if err := os.WriteFile(library, nil, 0o644); err != nil {
				return err
			}
			if err := os.Chmod(filepath.Dir(library), 0o755); err != nil {
				return err
			}
			if err := install("prezero", "prezero", "kubevirt.enabled=true", "kubevirt.library="+library); err != nil {
				return err
			}
			defer install("prezero", "prezero")
			if err := serves(ctx, clients, "prezero", "prezero", 2); err != nil {
				return err
			}
			if _, err := kubectlOn(launcherTemplate, "apply", "-n", namespace, "-f", "-"); err != nil {
				return err
			}
			one := pod("launcher", first, "", "")
			one.Labels["kubevirt.io"] = "virt-launcher"
			one.Annotations = map[string]string{"prezero.io/claim-template": "launcher-64m"}
			one.Spec.ResourceClaims, one.Spec.Containers[0].Name = nil, "compute"
			one.Spec.Containers[0].Args, one.Spec.Containers[0].Resources = nil, corev1.ResourceRequirements{}
			// The API server takes a policy a moment after it is made.
			if err := eventually(ctx, "a launcher has a claim", func(ctx context.Context) (bool, error) {
				there, err := clients.CoreV1().Pods(namespace).Create(ctx, one, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				return err == nil && len(there.Spec.ResourceClaims) == 1 && len(there.Spec.Containers[0].Resources.Claims) == 1, nil
			}); err != nil {
				return err
			}
			if err := running(ctx, client, one); err != nil {
				return err
			}
			there, err := clients.CoreV1().Pods(namespace).Get(ctx, "launcher", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, volume := range there.Spec.Volumes {
				if volume.HostPath != nil {
					t.Errorf("%s is a path of the node", volume.Name)
				}
			}
			found := false
			for _, pid := range processes("tenant") {
				environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
				if !strings.Contains(string(environment), "LD_PRELOAD="+library+"\x00") {
					continue
				}
				found = true
				root := fmt.Sprintf("/proc/%d/root", pid)
				if about, err := os.Stat(root + "/run/prezero/io.prezero"); err != nil || about.Mode()&os.ModeSocket == 0 {
					t.Errorf("the daemon's socket: %v %v", about, err)
				}
				if _, err := os.Stat(root + library); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(root + "/run/prezero/io.prezero.agent"); err == nil {
					t.Error("the agents' socket is there")
				}
			}
			if !found {
				t.Errorf("no program with the library runs")
			}
			return have(ctx, 0, 0)
		},
		"the claim is counted, and gone with its pod": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			claims, err := clients.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
			if err != nil || len(claims.Items) != 1 || claims.Items[0].Status.Allocation == nil {
				return fmt.Errorf("%v %v", claims, err)
			}
			if _, err := kubectl("delete", "pod", "-n", namespace, "launcher", "--grace-period=1"); err != nil {
				return err
			}
			return eventually(ctx, "the claim is gone", func(ctx context.Context) (bool, error) {
				claims, err := clients.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
				return err == nil && len(claims.Items) == 0, nil
			})
		},
	}, "a launcher with a claim runs", "the claim is counted, and gone with its pod")
}

// machines is a stand-in for KubeVirt's resource, which documents show. Its shape is not checked.
const machines = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"virtualmachineinstances.kubevirt.io"},"spec":{"group":"kubevirt.io","scope":"Namespaced",
"names":{"kind":"VirtualMachineInstance","plural":"virtualmachineinstances"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// manifests of a document: its blocks of YAML that are whole objects.
func manifests(path string) (all []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil || filepath.Ext(path) == ".yaml" {
		return []string{string(text)}, err
	}
	for nth, part := range strings.Split(string(text), "```") {
		if block, isYAML := strings.CutPrefix(part, "yaml\n"); nth%2 == 1 && isYAML && strings.HasPrefix(block, "apiVersion:") {
			all = append(all, block)
		}
	}
	return all, nil
}

// Promise P391 (pods): The API server takes every manifest in the documents and examples, without an unknown field.
func TestTwoNodesTakeEveryManifestOfTheDocuments(t *testing.T) {
	feature(t, "manifests", map[string]step{
		"each is taken": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			if _, err := kubectlOn(machines, "apply", "-f", "-"); err != nil {
				return err
			}
			defer kubectl("delete", "crd", "virtualmachineinstances.kubevirt.io", "--wait=false")
			if _, err := kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/virtualmachineinstances.kubevirt.io"); err != nil {
				return err
			}
			repository, seen := filepath.Dir(source), 0
			for _, below := range []string{filepath.Join(repository, "docs"), filepath.Join(repository, "examples"), filepath.Join(source, "deploy")} {
				err := filepath.WalkDir(below, func(path string, entry os.DirEntry, err error) error {
					if ending := filepath.Ext(path); err != nil || entry.IsDir() || (ending != ".md" && ending != ".yaml") {
						return err
					}
					all, err := manifests(path)
					for _, one := range all {
						seen++
						if out, err := kubectlOn(one, "apply", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", "-"); err != nil && !isInOtherNamespace(out) {
							t.Errorf("%s: %s", path, out)
						}
					}
					return err
				})
				if err != nil {
					return err
				}
			}
			if seen < 10 {
				t.Errorf("%d manifests: this shows nothing", seen)
			}
			return nil
		},
		"an extended resource is one ready block": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			text, err := os.ReadFile(source + "/deploy/extended.yaml")
			if err != nil {
				return err
			}
			class, _, _ := strings.Cut(string(text), "\n---\n")
			// The bed's blocks are small.
			class = strings.ReplaceAll(class, "67108864", "1")
			if _, err := kubectlOn(class, "apply", "-f", "-"); err != nil {
				return err
			}
			defer kubectl("delete", "deviceclass", "prezero-block")
			one := pod("extended", first, "", "")
			one.Spec.ResourceClaims, one.Spec.Containers[0].Args = nil, nil
			block := corev1.ResourceList{"prezero.io/block": resource.MustParse("1")}
			one.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: block, Limits: block}
			if err := running(ctx, client, one); err != nil {
				return err
			}
			return have(ctx, 1, 0)
		},
	}, "each is taken", "an extended resource is one ready block")
}

// isInOtherNamespace: the manifest of the driver names its own.
func isInOtherNamespace(out string) bool {
	return strings.Contains(out, "does not match the namespace")
}

// Pods come and go while programs are killed and the API server is away.
//
// Promise P346 (pods): Kills of driver, daemon and kubelet and an API server that hangs, on two
// nodes, leave no loan and no lent page once the pods are gone.
func TestTwoNodesInAStormOfKillsLeakNothing(t *testing.T) {
	feature(t, "storm", map[string]step{
		"a minute of kills": func(ctx context.Context, t *testing.T, client klient.Client, clients *kubernetes.Clientset) error {
			seed := uint64(time.Now().UnixNano())
			if text := os.Getenv("PREZERO_TEST_SEED"); text != "" {
				fmt.Sscan(text, &seed)
			}
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			kills := map[string]int{}
			end := time.Now().Add(time.Minute)
			pods, next := 0, time.Now()
			for time.Now().Before(end) {
				one := pod(fmt.Sprintf("w%d", pods), []string{"", first, secondName}[random.IntN(3)], template, "")
				if client.Resources().Create(ctx, one) == nil {
					pods++
				}
				if pods > 3 {
					client.Resources().Delete(ctx, pod(fmt.Sprintf("w%d", pods-3), "", template, ""))
				}
				time.Sleep(time.Duration(random.IntN(900)) * time.Millisecond)
				if time.Now().Before(next) {
					continue
				}
				next = time.Now().Add(time.Duration(2+random.IntN(3)) * time.Second)
				var err error
				what := []string{"driver", "daemon", "kubelet", "API server"}[random.IntN(4)]
				switch what {
				case "driver":
					for _, pid := range processes("prezero-dra") {
						syscall.Kill(pid, syscall.SIGKILL)
					}
				case "daemon":
					second.kill("prezero")
					err = second.startDaemon()
				case "kubelet":
					second.kill("kubelet")
					err = second.startKubelet()
				case "API server":
					// It hangs, which is worse for its clients than to be gone.
					for _, pid := range processes("kube-apiserver") {
						syscall.Kill(pid, syscall.SIGSTOP)
						time.Sleep(4 * time.Second)
						syscall.Kill(pid, syscall.SIGCONT)
					}
				}
				if err != nil {
					return err
				}
				kills[what]++
			}
			t.Logf("FIGURE %d pods, kills %v", pods, kills)
			if _, err := kubectl("delete", "pods", "-n", namespace, "-l", "test=fleet", "--wait=false"); err != nil {
				return err
			}
			if err := serves(ctx, clients, "prezero", "prezero", 2); err != nil {
				return err
			}
			if err := have(ctx, 0, 0); err != nil {
				return err
			}
			return eventually(ctx, "no page of the second node is lent or draining", func(context.Context) (bool, error) {
				out, err := second.inside(prezero, "status", "--json").Output()
				return err == nil && strings.Contains(string(out), `"lent_pages": 0`) && strings.Contains(string(out), `"draining_pages": 0`), nil
			})
		},
	}, "a minute of kills")
}
