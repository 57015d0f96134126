// SPDX-License-Identifier: Apache-2.0 OR MIT

// All of Kubernetes that a cluster of one machine needs, in one program: its first argument, or the
// name it is called by, says which part it is. One link instead of five, and a third of the disk.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var parts = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	// The kubelet's own main hands in a context that ends with a signal; twice is a panic there, and
	// a kubelet that is killed is what the tests want.
	"kubelet": func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl": func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
}

func main() {
	if parts[filepath.Base(os.Args[0])] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
	}
	make := parts[filepath.Base(os.Args[0])]
	if make == nil {
		fmt.Fprintf(os.Stderr, "kube: no part is called %q\n", os.Args[0])
		os.Exit(2)
	}
	os.Exit(cli.Run(make()))
}
