// SPDX-License-Identifier: Apache-2.0 OR MIT

// prezero-dra gives pods huge pages that are zero before they ask: the kubelet's plugin on one node.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"prezero-dra/driver"
	"prezero/agent"
)

// flags of the command line.
type flags struct {
	node, socket, borrowers, library, kubelet, cdi, kubeconfig, address, metrics, podResources, pod string
	grace, reconcile                                                                                time.Duration
	isMapped, isPlaceholder, hasStatus                                                              bool
	rest                                                                                            resource.QuantityValue
	qps                                                                                             float64
	burst                                                                                           int
	pace                                                                                            driver.Pace
}

func parse() flags {
	f := flags{pace: driver.DefaultPace}
	flag.StringVar(&f.node, "node", os.Getenv("NODE_NAME"), "the node's name; default: $NODE_NAME")
	flag.StringVar(&f.socket, "socket", "/run/prezero/io.prezero.agent", "the daemon's socket for agents")
	flag.StringVar(&f.borrowers, "borrowers-socket", "/run/prezero/io.prezero", "the daemon's socket for borrowers, which containers of a launcher's class get")
	flag.StringVar(&f.library, "library", "/usr/lib/prezero/libprezero_preload.so", "the preload library on the node, which they get")
	flag.StringVar(&f.metrics, "daemon-metrics", "/run/prezero/metrics", "the daemon's socket for metrics, which are served at /daemon/metrics")
	flag.StringVar(&f.kubelet, "kubelet", "/var/lib/kubelet", "the kubelet's directory")
	flag.StringVar(&f.podResources, "pod-resources", "", "the kubelet's socket of pod resources; default: pod-resources/kubelet.sock in its directory")
	flag.StringVar(&f.cdi, "cdi", "/var/run/cdi", "where the container runtime reads CDI specs")
	flag.StringVar(&f.kubeconfig, "kubeconfig", "", "a kubeconfig; default: the pod's service account")
	flag.StringVar(&f.address, "health", ":9808", "where /healthz, /livez and /metrics are served; empty for nowhere")
	flag.StringVar(&f.pod, "pod-uid", os.Getenv("POD_UID"), "the pod's uid, for rolling updates; default: $POD_UID")
	flag.DurationVar(&f.grace, "grace", 10*time.Minute, "how long a claim must not have been this node's before its loans are returned unasked")
	flag.DurationVar(&f.reconcile, "reconcile", time.Minute, "how often loans without their claim are looked for")
	flag.BoolVar(&f.isMapped, "node-allocatable", false, "publish which huge pages of the node a claim takes; the cluster needs the feature gate DRANodeAllocatableResources, of Kubernetes 1.36 or later")
	flag.BoolVar(&f.hasStatus, "claim-status", false, "write into the status of claims what they got")
	flag.BoolVar(&f.isPlaceholder, "placeholder", false, "do nothing until the end: for a pod that requests what the daemon's pools may have")
	flag.Var(&f.rest, "rest", "how much of each NUMA node and page size is never published as ready, for claims larger than every block: a quantity as 8Gi")
	flag.Float64Var(&f.qps, "kube-api-qps", 10, "requests a second to the API server in the long run")
	flag.IntVar(&f.burst, "kube-api-burst", 20, "requests to the API server at once")
	flag.DurationVar(&f.pace.Interval, "publish-interval", f.pace.Interval, "the mean time between two writes of this node's devices in the long run")
	flag.IntVar(&f.pace.Burst, "publish-burst", f.pace.Burst, "how many writes of devices may come at once after a rest")
	flag.DurationVar(&f.pace.Settle, "publish-settle", f.pace.Settle, "after which time a small change of devices is published")
	flag.Int64Var(&f.pace.Part, "publish-part", f.pace.Part, "a change of one part in this number of a pool is large")
	// Of the log's flags the two that people use.
	logging := flag.NewFlagSet("log", flag.PanicOnError)
	klog.InitFlags(logging)
	for _, name := range []string{"v", "vmodule"} {
		one := logging.Lookup(name)
		flag.Var(one.Value, one.Name, one.Usage)
	}
	flag.Parse()
	return f
}

// clients of the API server: for slices, and for all else. Slices with a mapping may need translation.
func (f flags) clients() (slices, others *kubernetes.Clientset, shape *driver.Shape, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return nil, nil, nil, err
	}
	config.QPS, config.Burst, config.UserAgent = float32(f.qps), f.burst, "prezero-dra"
	others, err = kubernetes.NewForConfig(protobuf(config))
	if err != nil || !f.isMapped {
		return others, others, nil, err
	}
	if shape, err = driver.ShapeOf(config); err != nil {
		return nil, nil, nil, err
	}
	slices, err = kubernetes.NewForConfig(config)
	return slices, others, shape, err
}

func protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return config
}

func run() error {
	f := parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if f.isPlaceholder {
		<-ctx.Done()
		return nil
	}
	if f.node == "" {
		return errors.New("which node? --node NAME or $NODE_NAME")
	}
	if f.pace.Interval < 0 || f.pace.Burst < 1 || f.pace.Part < 1 {
		return errors.New("--publish-interval is a time, and --publish-burst and --publish-part are at least 1")
	}
	forSlices, client, shape, err := f.clients()
	if err != nil {
		return err
	}
	data, registry := filepath.Join(f.kubelet, "plugins", driver.Name), filepath.Join(f.kubelet, "plugins_registry")
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	metrics, health := driver.NewMetrics(), &driver.Health{}
	setup := driver.Setup{
		Node: f.node, Agent: agent.Client{Socket: f.socket}, Kube: client, Records: filepath.Join(data, "claims"), CDI: f.cdi, Grace: f.grace,
		Kubelet: driver.Kubelet{Socket: cmp.Or(f.podResources, filepath.Join(f.kubelet, "pod-resources", "kubelet.sock"))},
		Library: driver.Library{Preload: f.library, Socket: f.borrowers}, Metrics: metrics, Health: health,
	}
	if f.hasStatus {
		setup.Statuses = driver.NewStatuses(client, f.node, metrics)
		go setup.Statuses.Run(ctx)
	}
	d, err := driver.New(setup)
	if err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(driver.Name), kubeletplugin.NodeName(f.node), kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(registry), kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RollingUpdate(types.UID(f.pod)),
		// Each claim is locked for itself: none waits for what another waits for.
		kubeletplugin.Serialize(false))
	if err != nil {
		return err
	}
	defer helper.Stop()
	health.IsRegistered = func() bool {
		status := helper.RegistrationStatus()
		return status != nil && status.PluginRegistered
	}
	if f.address != "" {
		server, serve, err := driver.Serve(f.address, map[string]http.Handler{
			"/healthz": health, "/livez": http.HandlerFunc(health.Live),
			"/metrics": metrics.Handler(), "/daemon/metrics": driver.DaemonMetrics(f.metrics),
		})
		if err != nil {
			return err
		}
		go func() {
			if err := serve(); !errors.Is(err, http.ErrServerClosed) {
				d.HandleError(ctx, err, "healthz")
			}
		}()
		defer server.Close()
	}
	until := func(what string, run func() error) {
		if err := run(); err != nil {
			d.HandleError(ctx, err, what)
			stop()
		}
	}
	go until("sockets", func() error { return driver.Guard(ctx, driver.Sockets(registry, data, f.pod)) })
	if shape != nil {
		go until("API server", func() error { return shape.Watch(ctx, f.reconcile) })
	}
	features, end := driver.NewFeatures(client, f.node, health, metrics)
	defer end()
	skew := driver.NewSkew(setup.Agent, features, metrics)
	go func() {
		for ctx.Err() == nil {
			skew.Look(ctx)
			if err := d.Reconcile(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "reconcile")
			}
			if d.Fatal() != nil {
				stop()
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait.Jitter(f.reconcile, 0.2)):
			}
		}
	}()
	offer := driver.Offer{Node: f.node, IsMapped: f.isMapped, Rest: f.rest.Value(), Pace: f.pace}
	slices := driver.NewSlices(ctx, forSlices, f.node, features.Note)
	defer slices.Stop()
	d.Publish(ctx, offer, slices, health)
	return d.Fatal()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "prezero-dra:", err)
		os.Exit(1)
	}
}
