// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	events "k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// needed are the features without which devices are not what they are published as. Without the gate of
// taints a node with a dead daemon gets pods that wait, which is logged alone.
var needed = []string{"DRAConsumableCapacity"}

// Features tells loudly what the API server dropped from the slices that it was sent: by an event of the
// node, by /healthz and by a metric. The helper reads each slice back that it writes.
type Features struct {
	node    *corev1.ObjectReference
	events  events.EventRecorder
	health  *Health
	metrics *Metrics
	mu      sync.Mutex
	told    []string
}

// NewFeatures of the API server, for a node. The returned function ends what writes events.
func NewFeatures(kube kubernetes.Interface, node string, health *Health, metrics *Metrics) (*Features, func()) {
	broadcaster := events.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events(metav1.NamespaceDefault)})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: Name, Host: node})
	// As the kubelet names nodes in events: by name, since `kubectl describe node` looks for that.
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
	return &Features{node: ref, events: recorder, health: health, metrics: metrics}, broadcaster.Shutdown
}

// Note an error of publishing.
func (f *Features) Note(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
	var dropped *resourceslice.DroppedFieldsError
	if !errors.As(err, &dropped) {
		return
	}
	features := dropped.DisabledFeatures()
	if isMappingDropped(dropped) {
		features = append(features, "DRANodeAllocatableResources")
	}
	var lacks []string
	for _, feature := range features {
		f.metrics.dropped.WithLabelValues(feature).Set(1)
		if slices.Contains(needed, feature) || feature == "DRANodeAllocatableResources" {
			lacks = append(lacks, feature)
		}
	}
	if len(lacks) == 0 {
		return
	}
	f.health.Lacks(lacks)
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Equal(f.told, lacks) {
		return
	}
	f.told = lacks
	f.events.Eventf(f.node, corev1.EventTypeWarning, "PrezeroFeatureDisabled",
		"The API server drops fields of the devices of driver %s: no claim can be served here. It needs Kubernetes 1.36 or later with the feature gates %s.", Name, strings.Join(lacks, ", "))
}

// isMappingDropped tells whether devices were to say which of the node's pages they take, and do not.
func isMappingDropped(err *resourceslice.DroppedFieldsError) bool {
	desired, actual := err.DesiredSlice.Spec.Devices, err.ActualSlice.Spec.Devices
	for nth := range min(len(desired), len(actual)) {
		if len(desired[nth].NodeAllocatableResources) > len(actual[nth].NodeAllocatableResources) {
			return true
		}
	}
	return false
}
