// SPDX-License-Identifier: Apache-2.0 OR MIT

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"prezero-dra/driver"
	"prezero/agent"
)

const (
	// budget is the bound on writes per second and node in a storm.
	budget = 0.02
	gib    = 1 << 30
)

// supplier stands for a daemon: its agents' socket reports any number of ready blocks.
type supplier struct {
	ready atomic.Int64
	calls atomic.Int64
}

func (s *supplier) serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			call, err := bufio.NewReader(conn).ReadString(0)
			if err != nil {
				return
			}
			parameters := map[string]any{"loans": []any{}, "more": false}
			if strings.Contains(call, "GetSupply") {
				s.calls.Add(1)
				const block = 8 * gib
				ready := s.ready.Load() * block
				parameters = map[string]any{"supplies": []agent.Supply{{
					PageBytes: 2 << 20, BlockBytes: block, ReadyBytes: ready, TotalBytes: 256 * gib,
					ReadyBlocks: []agent.ReadyBlocks{{BlockBytes: block, ReadyBytes: ready}},
				}}}
			}
			answer, _ := json.Marshal(map[string]any{"parameters": parameters})
			conn.Write(append(answer, 0))
		}()
	}
}

// count adds up the samples of a metric that have all of these labels.
func count(ctx context.Context, client rest.Interface, name string, labels ...string) (float64, error) {
	text, err := client.Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	var sum float64
	for line := range strings.Lines(string(text)) {
		has := strings.HasPrefix(line, name+"{")
		for _, label := range labels {
			has = has && strings.Contains(line, label)
		}
		if has {
			fields := strings.Fields(line)
			value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				return 0, err
			}
			sum += value
		}
	}
	return sum, nil
}

func writes(ctx context.Context, clients *kubernetes.Clientset) (float64, error) {
	var sum float64
	for _, verb := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		n, err := count(ctx, clients.RESTClient(), "apiserver_request_total", `resource="resourceslices"`, `verb="`+verb+`"`)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// seconds returns the CPU time of a program.
func seconds(word string) (sum float64) {
	for _, pid := range processes(word) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 12 {
			for _, field := range fields[11:13] {
				ticks, _ := strconv.ParseFloat(field, 64)
				sum += ticks / 100
			}
		}
	}
	return sum
}

// figures of one period: writes of slices, pods that they woke, and CPU time.
type figures struct {
	long, writes, woken, apiserver, scheduler float64
}

func (f figures) String() string {
	return fmt.Sprintf("%.1f writes/s, %.1f pods woken/s, API server %.0f %%, scheduler %.0f %% of a core", f.writes/f.long, f.woken/f.long, 100*f.apiserver/f.long, 100*f.scheduler/f.long)
}

func TestScaleOfFourHundredNodes(t *testing.T) {
	nodes := 400
	if text := os.Getenv("PREZERO_E2E_NODES"); text != "" {
		fmt.Sscan(text, &nodes)
	}
	built := features.New("storm").Assess("writes are within the budget, and none at rest", func(ctx context.Context, t *testing.T, config *envconf.Config) context.Context {
		if err := storm(ctx, t, config.Client().RESTConfig(), nodes); err != nil {
			t.Fatal(err)
		}
		return ctx
	})
	testenv.Test(t, built.Feature())
}

func storm(ctx context.Context, t *testing.T, config *rest.Config, nodes int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 200, 400
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ofScheduler := rest.CopyConfig(config)
	ofScheduler.Host = "https://127.0.0.1:10259"
	scheduler, err := kubernetes.NewForConfig(ofScheduler)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "prezero-scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var done sync.WaitGroup
	defer func() {
		cancel()
		done.Wait()
		unmake()
	}()
	if err := pending(ctx, clients); err != nil {
		return err
	}
	var suppliers []*supplier
	for nth := range nodes {
		name := fmt.Sprintf("scale-%d", nth)
		_, err := clients.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"scale": "yes"}}, Spec: corev1.NodeSpec{Unschedulable: true}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		socket := filepath.Join(dir, name)
		listener, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		defer listener.Close()
		one := &supplier{}
		one.ready.Store(8)
		suppliers = append(suppliers, one)
		go one.serve(listener)
		its, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		health := &driver.Health{}
		d, err := driver.New(driver.Setup{Node: name, Agent: agent.Client{Socket: socket}, Kube: its, Records: socket + ".claims", CDI: socket + ".cdi", Health: health})
		if err != nil {
			return err
		}
		slices := driver.NewSlices(ctx, its, name, func(context.Context, error, string) {})
		done.Go(func() {
			d.Publish(ctx, driver.Offer{Node: name, Pace: driver.DefaultPace}, slices, health)
			slices.Stop()
		})
	}
	err = eventually(ctx, "all nodes have devices", func(ctx context.Context) (bool, error) {
		list, err := clients.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		return err == nil && len(list.Items) >= nodes, nil
	})
	if err != nil {
		return err
	}
	over := func(long time.Duration) (f figures, err error) {
		look := func() (all figures, err error) {
			if all.writes, err = writes(ctx, clients); err != nil {
				return all, err
			}
			all.woken, err = count(ctx, scheduler.RESTClient(), "scheduler_queue_incoming_pods_total", `event="ResourceSlice`)
			all.apiserver, all.scheduler, all.long = seconds("kube-apiserver"), seconds("kube-scheduler"), float64(time.Now().UnixNano())/1e9
			return all, err
		}
		before, err := look()
		if err != nil {
			return f, err
		}
		time.Sleep(long)
		after, err := look()
		return figures{after.long - before.long, after.writes - before.writes, after.woken - before.woken, after.apiserver - before.apiserver, after.scheduler - before.scheduler}, err
	}
	time.Sleep(10 * time.Second)
	rest, err := over(30 * time.Second)
	if err != nil {
		return err
	}
	t.Logf("FIGURE %d nodes at rest: %v", nodes, rest)
	done.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
			for _, one := range suppliers {
				one.ready.Store(rand.Int64N(17) * rand.Int64N(2))
			}
		}
	})
	begins, err := over(time.Minute)
	if err != nil {
		return err
	}
	t.Logf("FIGURE the first minute of a storm: %v", begins)
	lasts, err := over(2 * time.Minute)
	if err != nil {
		return err
	}
	t.Logf("FIGURE two minutes more: %v", lasts)
	calls := int64(0)
	for _, one := range suppliers {
		calls += one.calls.Load()
	}
	if calls < int64(nodes)*20 {
		t.Errorf("%d looks at the daemons: this shows nothing", calls)
	}
	if rest.writes > 0 {
		t.Errorf("%.0f writes of %d nodes at rest", rest.writes, nodes)
	}
	if each := lasts.writes / lasts.long / float64(nodes); each > budget || each < budget/10 {
		t.Errorf("%.4f writes a second and node in a storm, and the budget is %.4f", each, budget)
	}
	// A rest allows a burst of writes.
	if each := begins.writes / float64(nodes); each > float64(driver.DefaultPace.Burst)+1.2 {
		t.Errorf("%.1f writes of each node in the first minute", each)
	}
	return nil
}

// pending pods wait for devices of another driver: each write of a slice wakes them.
func pending(ctx context.Context, clients *kubernetes.Clientset) error {
	class := &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "scale-gpu"},
		Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.example.com"`}}}},
	}
	if _, err := clients.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "scale-gpu", Namespace: namespace}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "scale-gpu"}}}
	if _, err := clients.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, template, metav1.CreateOptions{}); err != nil {
		return err
	}
	for nth := range 20 {
		one := pod(fmt.Sprintf("scale-gpu-%d", nth), "", "scale-gpu", "")
		one.Labels = map[string]string{"test": "scale"}
		if _, err := clients.CoreV1().Pods(namespace).Create(ctx, one, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func unmake() {
	kubectl("delete", "pods", "-n", namespace, "-l", "test=scale", "--force", "--grace-period=0")
	kubectl("delete", "resourceclaimtemplate", "-n", namespace, "scale-gpu")
	kubectl("delete", "deviceclass", "scale-gpu")
	kubectl("delete", "nodes", "-l", "scale=yes", "--wait=false")
	kubectl("delete", "resourceslices", "--field-selector", "spec.driver=prezero.io", "--wait=false")
}
