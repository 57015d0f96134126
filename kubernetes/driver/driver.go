// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package driver gives pods zeroed huge pages: a DRA plugin of the kubelet's, for which a claim is a
// loan of the prezero daemon by name, and a file in the container.
//
// Everything that lasts is in the daemon (loans), in the records directory (whose they are) and in CDI
// specs; the driver can be killed between any two steps, and each call can be made again.
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"prezero-dra/agent"
)

// Driver of one node.
type Driver struct {
	agent agent.Client
	kube  kubernetes.Interface
	files files
	// How long a claim must have been gone before what is lent to it is returned.
	grace time.Duration

	mu sync.Mutex
	// As they are on disk: another driver's, too, while one replaces the other.
	records map[types.UID]record
	read    time.Time
	gone    map[types.UID]time.Time
	fatal   error
}

// New driver, with what an earlier one has left.
func New(client agent.Client, kube kubernetes.Interface, recordsDir, cdiDir string, grace time.Duration) (*Driver, error) {
	d := &Driver{agent: client, kube: kube, files: files{recordsDir, cdiDir}, grace: grace, gone: map[types.UID]time.Time{}}
	if err := d.refresh(); err != nil {
		return nil, err
	}
	if err := d.files.sweep(); err != nil {
		klog.Background().Error(err, "specs of an earlier driver are left")
	}
	return d, nil
}

// refresh reads the records if any was written or removed, by whomever.
func (d *Driver) refresh() error {
	var changed time.Time
	if about, err := os.Stat(d.files.records); err == nil {
		changed = about.ModTime()
	}
	// A change in the same tick of the clock as the last look would not be seen.
	if d.records != nil && changed.Equal(d.read) && time.Since(changed) > 2*time.Second {
		return nil
	}
	all, unread, err := d.files.load()
	if err != nil {
		return err
	}
	for _, err := range unread {
		klog.Background().Error(err, "its loans are returned when the kubelet says so")
	}
	d.records, d.read = all, changed
	return nil
}

// PrepareResourceClaims lends for each claim. A claim that was prepared before gets the same loans.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(ctx, claim)
		if err != nil {
			klog.FromContext(ctx).Error(err, "prepare", "claim", klog.KObj(claim))
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *Driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	all, err := allocation(claim)
	if err != nil {
		return nil, err
	}
	if !plain.MatchString(string(claim.UID)) {
		return nil, fmt.Errorf("%q is no UID", claim.UID)
	}
	where, err := places(all)
	if err != nil {
		return nil, err
	}
	kept := record{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, Bytes: map[string]int64{}}
	for _, one := range all {
		kept.Bytes[one.result.Device] += one.bytes
	}
	if err := write(d.files.record(claim.UID), kept); err != nil {
		return nil, err
	}
	d.records[claim.UID] = kept
	delete(d.gone, claim.UID)
	var made []agent.Lent
	var devices []kubeletplugin.Device
	var specs []cdiDevice
	// What cannot be had whole holds nothing: others may want it until the kubelet tries again. Zeros
	// that no pod had are kept for nobody, what an owner left before stays.
	giveUp := func(err error) error {
		for _, lent := range made {
			end := d.agent.Discard
			if lent.Kept {
				end = d.agent.Return
			}
			err = errors.Join(err, end(ctx, lent.Loan.Name))
		}
		return err
	}
	for nth, one := range all {
		name := loanName(claim.Namespace, claim.UID, one.index)
		lent, err := d.agent.Lend(ctx, agent.Lend{
			Name: name, Bytes: one.bytes, PageBytes: one.kind.page, Node: &one.kind.node, Whole: true,
			UID: one.config.UID, GID: one.config.GID, Owner: one.owner, KeepSeconds: one.keep,
		})
		if err != nil {
			return nil, giveUp(err)
		}
		if !lent.Found {
			made = append(made, lent)
			klog.FromContext(ctx).Info("lent", "name", name, "bytes", one.bytes, "ready", lent.ReadyBytes, "kept", lent.Kept)
		}
		id := fmt.Sprintf("%s-%d", claim.UID, one.index)
		specs = append(specs, device(id, where[nth], lent.Loan.Path, one.bytes))
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{one.result.Request}, PoolName: one.result.Pool, DeviceName: one.result.Device,
			ShareID: one.result.ShareID, CDIDeviceIDs: []string{Name + "/memory=" + id},
		})
	}
	if err := write(d.files.spec(claim.UID), spec(specs)); err != nil {
		return nil, giveUp(err)
	}
	return devices, nil
}

// UnprepareResourceClaims returns what was lent to each claim. One that nobody knows is done.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(ctx, claim.Namespace, claim.UID)
	}
	return results, nil
}

func (d *Driver) unprepare(ctx context.Context, namespace string, uid types.UID) error {
	if !plain.MatchString(string(uid)) {
		// Nothing is ever lent to such a one, and its paths would be others'.
		return nil
	}
	loans, err := d.agent.Loans(ctx, loanPrefix(namespace, uid))
	if err != nil {
		return err
	}
	for _, loan := range loans {
		if err := d.agent.Return(ctx, loan.Name); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("returned", "name", loan.Name)
	}
	// The record last: until then a later start knows whose they were.
	if err := errors.Join(remove(d.files.spec(uid)), remove(d.files.record(uid))); err != nil {
		return err
	}
	delete(d.records, uid)
	delete(d.gone, uid)
	return nil
}

// Reconcile returns what is lent to claims that have been gone for the time of grace: a driver that was
// away when the kubelet wanted to unprepare them, on a node whose kubelet forgot.
func (d *Driver) Reconcile(ctx context.Context) error {
	d.mu.Lock()
	err := d.refresh()
	known := make([]record, 0, len(d.records))
	for _, one := range d.records {
		known = append(known, one)
	}
	d.mu.Unlock()
	failed := err
	for _, one := range known {
		claim, err := d.kube.ResourceV1().ResourceClaims(one.Namespace).Get(ctx, one.Name, metav1.GetOptions{})
		isThere := err == nil && claim.UID == one.UID
		if err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, err)
			continue
		}
		failed = errors.Join(failed, d.heed(ctx, one, isThere))
	}
	return failed
}

func (d *Driver) heed(ctx context.Context, one record, isThere bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, still := d.records[one.UID]; !still {
		delete(d.gone, one.UID)
		return nil
	}
	since, noted := d.gone[one.UID]
	switch {
	case isThere:
		delete(d.gone, one.UID)
	case !noted:
		d.gone[one.UID] = time.Now()
	case time.Since(since) >= d.grace:
		klog.FromContext(ctx).Info("a claim is gone", "namespace", one.Namespace, "name", one.Name, "uid", one.UID)
		return d.unprepare(ctx, one.Namespace, one.UID)
	}
	return nil
}

// takenFrom is what claims have of each device, as the scheduler counts it.
func (d *Driver) takenFrom() map[string]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refresh(); err != nil {
		klog.Background().Error(err, "records")
	}
	taken := map[string]int64{}
	for _, one := range d.records {
		for device, bytes := range one.Bytes {
			taken[device] += bytes
		}
	}
	return taken
}

// HandleError is told by the helper what goes wrong beside the calls.
func (d *Driver) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.fatal = err
	}
}

// Fatal is an error after which the driver serves nobody: it is to be started again.
func (d *Driver) Fatal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fatal
}
