// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	applyresource "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"prezero/agent"
)

const (
	// mostStatuses wait to be written: a pod does not wait for its claim's status.
	mostStatuses = 256
	statusWithin = 10 * time.Second
)

// Statuses says in `status.devices` of claims what their pods got, for `kubectl describe resourceclaim`.
type Statuses struct {
	kube    kubernetes.Interface
	manager string
	metrics *Metrics
	queue   chan *applyresource.ResourceClaimApplyConfiguration
}

// NewStatuses of claims that are allocated on that node.
func NewStatuses(kube kubernetes.Interface, node string, metrics *Metrics) *Statuses {
	return &Statuses{kube, Name + "/" + node, metrics, make(chan *applyresource.ResourceClaimApplyConfiguration, mostStatuses)}
}

// deviceData is what a status says of one device.
type deviceData struct {
	// Path in the container.
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	// ReadyBytes were ready when the claim was prepared; the others were zeroed while the pod waited.
	ReadyBytes int64 `json:"readyBytes"`
	PageBytes  int64 `json:"pageBytes"`
	NUMANode   int64 `json:"numaNode"`
	// KeptContent tells whether the memory has what its owner left.
	KeptContent bool `json:"keptContent,omitempty"`
}

// Tell writes the status of a new loan once. A nil Statuses writes nothing.
func (s *Statuses) Tell(claim *resourceapi.ResourceClaim, where []place, all []allotted, lent []agent.Lent) {
	if s == nil {
		return
	}
	isNew := false
	for _, one := range lent {
		isNew = isNew || !one.Found
	}
	if !isNew {
		return
	}
	select {
	case s.queue <- statusOf(claim, where, all, lent):
	default:
		s.metrics.statusFails.Inc()
	}
}

func statusOf(claim *resourceapi.ResourceClaim, where []place, all []allotted, lent []agent.Lent) *applyresource.ResourceClaimApplyConfiguration {
	status := applyresource.ResourceClaimStatus()
	for nth, one := range all {
		loan := lent[nth]
		data, _ := json.Marshal(deviceData{
			Path: where[nth].path, Bytes: one.bytes, ReadyBytes: loan.ReadyBytes(),
			PageBytes: one.kind.page, NUMANode: one.kind.node, KeptContent: loan.Kept,
		})
		reason := "Lent"
		message := fmt.Sprintf("%d bytes at %s: %d were ready, %d were zeroed for it", one.bytes, where[nth].path, loan.ReadyBytes(), max(one.bytes-loan.ReadyBytes(), 0))
		if one.config.Launcher {
			reason, message = "Launcher", fmt.Sprintf("%d bytes are counted for what the container borrows by itself", one.bytes)
		}
		ready := applymeta.Condition().WithType("Ready").WithStatus(metav1.ConditionTrue).WithReason(reason).
			WithMessage(message).WithLastTransitionTime(metav1.Now())
		device := applyresource.AllocatedDeviceStatus().WithDriver(Name).WithPool(one.result.Pool).WithDevice(one.result.Device).
			WithConditions(ready).WithData(runtime.RawExtension{Raw: data})
		if one.result.ShareID != nil {
			device.WithShareID(string(*one.result.ShareID))
		}
		status.WithDevices(device)
	}
	return applyresource.ResourceClaim(claim.Name, claim.Namespace).WithUID(claim.UID).WithStatus(status)
}

// Run writes them until the context ends.
func (s *Statuses) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case one := <-s.queue:
			s.write(ctx, one)
		}
	}
}

func (s *Statuses) write(ctx context.Context, one *applyresource.ResourceClaimApplyConfiguration) {
	ctx, cancel := context.WithTimeout(ctx, statusWithin)
	defer cancel()
	_, err := s.kube.ResourceV1().ResourceClaims(*one.Namespace).ApplyStatus(ctx, one, metav1.ApplyOptions{FieldManager: s.manager, Force: true})
	if err != nil {
		s.metrics.statusFails.Inc()
		klog.FromContext(ctx).Error(err, "a claim's status is not written", "namespace", *one.Namespace, "name", *one.Name)
	}
}
