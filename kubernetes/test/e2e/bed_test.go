// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package e2e has the tests of two nodes. `cargo xtask cluster` runs them in the namespaces of its cluster: a
// control plane and node-1 are up, and a second node is started here, in mounts of its own.
package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/e2e-framework/klient"
	"sigs.k8s.io/e2e-framework/klient/wait"
	"sigs.k8s.io/e2e-framework/klient/wait/conditions"
	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"prezero/agent"
)

// within bounds each wait. On two busy cores the longest took a tenth of it.
const within = 4 * time.Minute

// The environment that xtask sets for this run.
var (
	here    = os.Getenv("PREZERO_E2E_HERE")
	logs    = os.Getenv("PREZERO_E2E_LOGS")
	images  = os.Getenv("PREZERO_E2E_IMAGES")
	source  = os.Getenv("PREZERO_E2E_CHART")
	prezero = os.Getenv("PREZERO_BIN")
)

var (
	testenv env.Environment
	second  *node
)

func TestMain(m *testing.M) {
	if here == "" {
		fmt.Println("skipped: cargo xtask cluster runs these")
		os.Exit(0)
	}
	testenv = env.NewWithConfig(envconf.NewWithKubeConfig(os.Getenv("KUBECONFIG")))
	testenv.Finish(func(ctx context.Context, _ *envconf.Config) (context.Context, error) {
		if second != nil {
			second.end()
		}
		return ctx, nil
	})
	os.Exit(testenv.Run(m))
}

// node is the second node. Its programs are children of the test.
type node struct {
	holder   *exec.Cmd
	services map[string]*exec.Cmd
}

const (
	first      = "node-1"
	secondName = "node-2"
	namespace  = "default"
)

// mounts gives the second node its own files. It shares the network of the cluster.
const mounts = `set -e
mkdir -p "$HERE/second/run" "$LOGS/node-2"
mount -t tmpfs -o mode=755 tmpfs "$HERE/second/run"
mkdir "$HERE/second/run/cluster"
mount --bind "$HERE" "$HERE/second/run/cluster"
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount --bind "$LOGS/node-2" /var/log
# Its own record of mounts is below what it covers.
mount -n --move "$HERE/second/run" /run
mkdir -p /run/cdi /run/prezero /run/cni /var/lib/kubelet
echo ready
exec sleep infinity`

// startSecond starts the second node once, and waits until the driver serves on both nodes.
func startSecond(ctx context.Context, client klient.Client) error {
	if second != nil {
		return failedStart
	}
	second = &node{services: map[string]*exec.Cmd{}}
	failedStart = second.up(ctx, client)
	return failedStart
}

// failedStart notes that the second node did not start: later tests fail at once.
var failedStart error

func (n *node) up(ctx context.Context, client klient.Client) error {
	if out, err := exec.Command("ip", "address", "replace", "10.99.0.2/24", "dev", "eth0").CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, out)
	}
	if err := makeGroups(); err != nil {
		return err
	}
	n.holder = exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", mounts)
	n.holder.Env = append(os.Environ(), "HERE="+here, "LOGS="+logs)
	n.holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var failed bytes.Buffer
	n.holder.Stderr = &failed
	out, err := n.holder.StdoutPipe()
	if err != nil {
		return err
	}
	if err := n.holder.Start(); err != nil {
		return err
	}
	if said, _ := bytesUntilLine(out); said != "ready" {
		return fmt.Errorf("the second node's mounts: %q %s", said, failed.String())
	}
	if err := n.startDaemon(); err != nil {
		return err
	}
	if err := n.start("containerd", "containerd", "--config", here+"/second/containerd.toml"); err != nil {
		return err
	}
	err = eventually(ctx, "containerd answers", func(context.Context) (bool, error) { return n.run("ctr", "version") == nil, nil })
	if err != nil {
		return err
	}
	for _, image := range []string{"tenant.tar", "prezero-dra_0.1.0.tar"} {
		if err := n.run("ctr", "-n", "k8s.io", "images", "import", filepath.Join(images, image)); err != nil {
			return err
		}
	}
	if err := n.startKubelet(); err != nil {
		return err
	}
	return n.join(ctx, client)
}

func bytesUntilLine(from interface{ Read([]byte) (int, error) }) (string, error) {
	var said []byte
	one := make([]byte, 1)
	for {
		if _, err := from.Read(one); err != nil {
			return string(said), err
		}
		if one[0] == '\n' {
			return string(said), nil
		}
		said = append(said, one[0])
	}
}

// makeGroups makes the second kubelet's control groups below the cluster's. xtask removes them.
func makeGroups() error {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if !strings.HasPrefix(words[2], "cgroup") {
			continue
		}
		above := filepath.Join(words[1], os.Getenv("PREZERO_E2E_CGROUP"))
		dir := filepath.Join(above, "second")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		// A cpuset of version 1 has none of its parent's.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			if text, err := os.ReadFile(filepath.Join(above, name)); err == nil && len(bytes.TrimSpace(text)) > 0 {
				os.WriteFile(filepath.Join(dir, name), text, 0o644)
			}
		}
	}
	return nil
}

// inside returns a command in the node's mounts.
func (n *node) inside(words ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", fmt.Sprint(n.holder.Process.Pid), "-m", "--"}, words...)...)
}

func (n *node) run(words ...string) error {
	if out, err := n.inside(words...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, out)
	}
	return nil
}

func (n *node) start(name string, words ...string) error {
	command := n.inside(words...)
	log, err := os.OpenFile(filepath.Join(logs, name+"-2.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := command.Start(); err != nil {
		return err
	}
	n.services[name] = command
	return nil
}

func (n *node) startDaemon() error {
	return n.start("prezero", prezero, "serve", "--config", here+"/second/prezero.toml")
}

func (n *node) startKubelet() error {
	return n.start("kubelet", "kube", "kubelet", "--kubeconfig="+here+"/second.conf", "--config="+here+"/second/kubelet.json",
		"--hostname-override="+secondName, "--node-ip=10.99.0.2", "--cert-dir="+here+"/second/certs", "--v=2")
}

// kill sends SIGKILL and waits for the end of the process.
func (n *node) kill(name string) {
	if service := n.services[name]; service != nil {
		service.Process.Kill()
		service.Wait()
		delete(n.services, name)
	}
}

// killContainers kills the containers of the node, and forgets them.
func (n *node) killContainers() error {
	return n.run("sh", "-c", `for c in $(ctr -n k8s.io tasks ls -q); do ctr -n k8s.io tasks kill -s KILL $c || true; done; sleep 1
for c in $(ctr -n k8s.io containers ls -q); do ctr -n k8s.io tasks rm -f $c >/dev/null 2>&1 || true; ctr -n k8s.io containers rm $c || true; done`)
}

// join adds the node and its daemon to the cluster, and waits for its driver.
func (n *node) join(ctx context.Context, client klient.Client) error {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: secondName}}
	is := func(ctx context.Context) (bool, error) {
		if err := client.Resources().Get(ctx, secondName, "", object); err != nil {
			return false, nil
		}
		for _, condition := range object.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	}
	if err := eventually(ctx, "node-2 is ready", is); err != nil {
		return err
	}
	object = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: secondName}}
	return client.Resources().Patch(ctx, object, patch(`{"metadata":{"labels":{"prezero.io/daemon":"true"}}}`))
}

func (n *node) end() {
	for _, name := range []string{"kubelet", "containerd", "prezero"} {
		if name == "kubelet" {
			n.kill(name)
			n.killContainers()
			continue
		}
		n.kill(name)
	}
	if n.holder != nil && n.holder.Process != nil {
		n.holder.Process.Kill()
		n.holder.Wait()
	}
	// The tests of one node use the first node.
	exec.Command("kube", "kubectl", "--kubeconfig", os.Getenv("KUBECONFIG"), "delete", "node", secondName, "--wait=false").Run()
}

// loans lists the loans of a node's daemon.
func loans(ctx context.Context, of string) ([]agent.Loan, error) {
	socket := "/run/prezero/io.prezero.agent"
	if of == secondName {
		socket = fmt.Sprintf("/proc/%d/root%s", second.holder.Process.Pid, socket)
	}
	return agent.Client{Socket: socket}.Loans(ctx, "")
}

// have waits until both nodes have this number of loans.
func have(ctx context.Context, one, two int) error {
	last := ""
	err := eventually(ctx, fmt.Sprintf("%d and %d loans", one, two), func(ctx context.Context) (bool, error) {
		a, err := loans(ctx, first)
		b, err2 := loans(ctx, secondName)
		last = fmt.Sprintf("%v %v; %v %v", a, err, b, err2)
		return err == nil && err2 == nil && len(a) == one && len(b) == two, nil
	})
	if err != nil {
		return fmt.Errorf("%w: there are %s", err, last)
	}
	return nil
}

func eventually(ctx context.Context, what string, is func(context.Context) (bool, error)) error {
	if err := wait.For(is, wait.WithContext(ctx), wait.WithTimeout(within), wait.WithInterval(500*time.Millisecond), wait.WithImmediate()); err != nil {
		return fmt.Errorf("never: %s: %w", what, err)
	}
	return nil
}

// install installs the chart under a release name, with values.
func install(release, namespace string, values ...string) error {
	words := []string{"--kubeconfig", os.Getenv("KUBECONFIG"), "upgrade", "--install", release, filepath.Join(source, "chart"),
		"--namespace", namespace, "--create-namespace", "--reset-values", "--set", "publish.interval=1s,publish.settle=1s,reconcile=2s,grace=6s"}
	for _, value := range values {
		words = append(words, "--set", value)
	}
	if out, err := exec.Command("helm", words...).CombinedOutput(); err != nil {
		return fmt.Errorf("helm: %w: %s", err, out)
	}
	return nil
}

func uninstall(release, namespace string) error {
	out, err := exec.Command("helm", "--kubeconfig", os.Getenv("KUBECONFIG"), "uninstall", release, "--namespace", namespace, "--wait").CombinedOutput()
	if err != nil {
		return fmt.Errorf("helm: %w: %s", err, out)
	}
	return nil
}

// serves waits until this number of driver pods of a release are ready, all of the newest revision.
func serves(ctx context.Context, clients kubernetes.Interface, release, namespace string, nodes int32) error {
	return eventually(ctx, fmt.Sprintf("%d drivers of release %s", nodes, release), func(ctx context.Context) (bool, error) {
		set, err := clients.AppsV1().DaemonSets(namespace).Get(ctx, release+"-dra", metav1.GetOptions{})
		if err != nil {
			return false, nil
		}
		status := set.Status
		return status.ObservedGeneration == set.Generation && status.NumberReady == nodes && status.UpdatedNumberScheduled == nodes &&
			status.CurrentNumberScheduled == nodes && status.DesiredNumberScheduled == nodes, nil
	})
}

// claimed waits until a claim meets the condition.
func claimed(ctx context.Context, client klient.Client, name string, is func(*resourceapi.ResourceClaim) bool) (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	err := wait.For(conditions.New(client.Resources()).ResourceMatch(claim, func(object klientObject) bool {
		return is(object.(*resourceapi.ResourceClaim))
	}), wait.WithContext(ctx), wait.WithTimeout(within), wait.WithInterval(500*time.Millisecond))
	return claim, err
}

// pod returns a pod of the tenant. Its claim comes from a template, or exists already.
func pod(name, on, template, claim string) *corev1.Pod {
	source := corev1.PodResourceClaim{Name: "memory"}
	if template != "" {
		source.ResourceClaimTemplateName = &template
	} else {
		source.ResourceClaimName = &claim
	}
	grace, token := int64(1), false
	one := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"test": "fleet"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &token,
			ResourceClaims: []corev1.PodResourceClaim{source},
			Containers: []corev1.Container{{
				Name: "main", Image: "localhost/tenant:1", ImagePullPolicy: corev1.PullNever, Args: []string{"use", "/dev/prezero/mem", "7"},
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "memory"}}},
			}},
		},
	}
	if on != "" {
		one.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": on}
	}
	return one
}

// running makes pods and waits until they run.
func running(ctx context.Context, client klient.Client, pods ...*corev1.Pod) error {
	for _, one := range pods {
		// The namespace's service account comes a moment after it.
		if err := eventually(ctx, "pod "+one.Name+" is taken", func(ctx context.Context) (bool, error) {
			return client.Resources().Create(ctx, one) == nil, nil
		}); err != nil {
			return err
		}
	}
	for _, one := range pods {
		err := wait.For(conditions.New(client.Resources()).PodRunning(one), wait.WithContext(ctx), wait.WithTimeout(within), wait.WithInterval(250*time.Millisecond))
		if err != nil {
			return fmt.Errorf("pod %s does not run: %w: %s", one.Name, err, describe(one.Name))
		}
	}
	return nil
}

func describe(pod string) string {
	out, _ := exec.Command("kube", "kubectl", "--kubeconfig", os.Getenv("KUBECONFIG"), "get", "events", "-n", namespace, "--field-selector", "involvedObject.name="+pod).CombinedOutput()
	return string(out)
}

func kubectl(words ...string) (string, error) {
	return kubectlOn("", words...)
}

// kubectlOn gives it a text to read.
func kubectlOn(text string, words ...string) (string, error) {
	command := exec.Command("kube", append([]string{"kubectl", "--kubeconfig", os.Getenv("KUBECONFIG")}, words...)...)
	command.Stdin = strings.NewReader(text)
	out, err := command.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(words, " "), err, out)
	}
	return string(out), nil
}

// processes lists processes by a word of their command line.
func processes(word string) (all []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		var pid int
		if _, err := fmt.Sscan(entry.Name(), &pid); err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		words := strings.Split(string(line), "\x00")
		for _, one := range words[:min(2, len(words))] {
			if filepath.Base(one) == word {
				all = append(all, pid)
				break
			}
		}
	}
	return all
}
