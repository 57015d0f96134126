// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
)

// A kubelet that starts wipes its node's slices. The kubelet's helper publishes by the same
// controller. For a minute it takes its last write for the present state, and it retries a change
// after twice as long each time: for two minutes no new claim was allocated on the node.
const (
	// How long a write counts for more than a read: longer than a watch lags.
	believed = 5 * time.Second
	// How long after a change by others is looked at it.
	settled = time.Second
	// How long after a failure is tried again, at first and at most.
	againMin, againMax = 10 * time.Millisecond, 2 * time.Second
)

// Slices of a node, published.
type Slices struct {
	ctx        context.Context
	kube       kubernetes.Interface
	node       string
	note       func(ctx context.Context, err error, msg string)
	controller *resourceslice.Controller
}

// NewSlices of that node, until the context ends. What goes wrong is noted by that function.
func NewSlices(ctx context.Context, kube kubernetes.Interface, node string, note func(context.Context, error, string)) *Slices {
	return &Slices{ctx: ctx, kube: kube, node: node, note: note}
}

// PublishResources says what the node has from now on.
func (s *Slices) PublishResources(_ context.Context, resources resourceslice.DriverResources) error {
	if s.controller != nil {
		s.controller.Update(&resources)
		return nil
	}
	again := workqueue.NewTypedItemExponentialFailureRateLimiter[string](againMin, againMax)
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(again, workqueue.TypedRateLimitingQueueConfig[string]{Name: "slices"})
	controller, err := resourceslice.StartController(s.ctx, resourceslice.Options{
		DriverName: Name, KubeClient: s.kube, Resources: &resources, Queue: queue,
		Owner:            &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: s.node},
		MutationCacheTTL: ptr.To(believed), SyncDelay: ptr.To(settled),
		ErrorHandler: s.note,
	})
	if err != nil {
		return err
	}
	s.controller = controller
	return nil
}

// Stop publishing. Published slices stay.
func (s *Slices) Stop() { s.controller.Stop() }
