// SPDX-License-Identifier: Apache-2.0 OR MIT

// prezero-dra gives pods huge pages that are zero before they ask: the kubelet's plugin on one node.
package main

import (
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"prezero-dra/driver"
	"prezero/agent"
)

func run() error {
	node := flag.String("node", os.Getenv("NODE_NAME"), "the node's name; default: $NODE_NAME")
	socket := flag.String("socket", "/run/prezero/io.prezero.agent", "the daemon's socket for agents")
	kubelet := flag.String("kubelet", "/var/lib/kubelet", "the kubelet's directory")
	cdi := flag.String("cdi", "/var/run/cdi", "where the container runtime reads CDI specs")
	kubeconfig := flag.String("kubeconfig", "", "a kubeconfig; default: the pod's service account")
	health := flag.String("health", ":9808", "where /healthz is served; empty for nowhere")
	grace := flag.Duration("grace", 10*time.Minute, "how long a claim must have been gone before its loans are returned unasked")
	reconcile := flag.Duration("reconcile", time.Minute, "how often is looked for claims that are gone")
	allocatable := flag.Bool("node-allocatable", false, "publish which huge pages of the node a claim takes; the cluster needs the feature gate DRANodeAllocatableResources, of Kubernetes 1.36 or later")
	var rest resource.QuantityValue
	flag.Var(&rest, "rest", "how much of each NUMA node and page size is never published as ready, for claims larger than every block: a quantity as 8Gi")
	placeholder := flag.Bool("placeholder", false, "do nothing until the end: for a pod that requests what the daemon's pools may have")
	pod := flag.String("pod-uid", os.Getenv("POD_UID"), "the pod's uid, for rolling updates; default: $POD_UID")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if *placeholder {
		<-ctx.Done()
		return nil
	}
	if *node == "" {
		return errors.New("which node? --node NAME or $NODE_NAME")
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	shape, err := driver.ShapeOf(config)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data, registry := filepath.Join(*kubelet, "plugins", driver.Name), filepath.Join(*kubelet, "plugins_registry")
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	d, err := driver.New(agent.Client{Socket: *socket}, client, filepath.Join(data, "claims"), *cdi, *grace)
	if err != nil {
		return err
	}
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(driver.Name), kubeletplugin.NodeName(*node), kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(registry),
		// Each claim is locked for itself: none waits for what another waits for.
		kubeletplugin.Serialize(false),
		kubeletplugin.PluginDataDirectoryPath(data),
	}
	if *pod != "" {
		options = append(options, kubeletplugin.RollingUpdate(types.UID(*pod)))
	}
	helper, err := kubeletplugin.Start(ctx, d, options...)
	if err != nil {
		return err
	}
	defer helper.Stop()
	state := &driver.Health{IsRegistered: func() bool {
		status := helper.RegistrationStatus()
		return status != nil && status.PluginRegistered
	}}
	if *health != "" {
		server, serve, err := driver.ServeHealth(*health, state)
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
	go func() {
		if err := driver.Guard(ctx, driver.Sockets(registry, data, *pod)); err != nil {
			d.HandleError(ctx, err, "sockets")
			stop()
		}
	}()
	go func() {
		if err := shape.Watch(ctx, *reconcile); err != nil {
			d.HandleError(ctx, err, "API server")
			stop()
		}
	}()
	go func() {
		for ctx.Err() == nil {
			if err := d.Reconcile(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "reconcile")
			}
			if d.Fatal() != nil {
				stop()
			}
			select {
			case <-ctx.Done():
			case <-time.After(*reconcile):
			}
		}
	}()
	offer := driver.Offer{Node: *node, IsMapped: *allocatable, Rest: rest.Value()}
	slices := driver.NewSlices(ctx, client, *node)
	defer slices.Stop()
	d.Publish(ctx, offer, slices, state)
	return d.Fatal()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "prezero-dra:", err)
		os.Exit(1)
	}
}
