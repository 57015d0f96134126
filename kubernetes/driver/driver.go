// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package driver gives pods zeroed huge pages. It is a DRA plugin of the kubelet's. A claim is a
// loan of the prezero daemon by name, and a file in the container.
//
// All lasting state is in the daemon (loans), in the records directory (their claims) and in CDI
// specs. The driver can be killed between any two steps, and each call can be repeated.
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"prezero/agent"
)

const (
	// prepareWithin is the deadline for all claims of one call. The kubelet waits 45 seconds for the
	// answer, and a loan begun for a claim that it gives up is given back within that time, too.
	prepareWithin = 40 * time.Second
	giveUpWithin  = 4 * time.Second
	// reconcileWithin is for one claim that is gone: there may be others.
	reconcileWithin = 10 * time.Second
)

// Driver of one node.
type Driver struct {
	agent agent.Client
	kube  kubernetes.Interface
	files files
	// The node's name, which is that of its pool of devices.
	node string
	// What launchers get.
	library Library
	// The kubelet's own list of the claims that its pods have.
	kubelet Kubelet
	status  *Statuses
	metrics *Metrics
	health  *Health
	// The devices that were published last.
	published atomic.Pointer[[]stock]
	// How long a claim must have been gone before its loan is returned.
	grace time.Duration
	// What the daemon is asked for at a time, to lend and to end.
	lending, ending *turns

	// Of what follows, for as long as it takes to look at it: no call of another process is made with it.
	mu sync.Mutex
	// As they are on disk: another driver's, too, while one replaces the other.
	records map[types.UID]record
	read    time.Time
	gone    map[types.UID]time.Time
	fatal   error
}

// Setup of a driver.
type Setup struct {
	// Node is its name.
	Node  string
	Agent agent.Client
	Kube  kubernetes.Interface
	// Records and CDI are directories.
	Records, CDI string
	// Library is what containers of a launcher's class get.
	Library Library
	// Grace is how long a claim must have been gone before its loan is returned.
	Grace   time.Duration
	Kubelet Kubelet
	// Statuses of claims are written where this is one.
	Statuses *Statuses
	Metrics  *Metrics
	Health   *Health
}

// New driver, with what an earlier one has left.
func New(setup Setup) (*Driver, error) {
	d := &Driver{
		agent: setup.Agent, kube: setup.Kube, files: files{setup.Records, setup.CDI}, node: setup.Node,
		library: setup.Library, kubelet: setup.Kubelet, status: setup.Statuses, metrics: setup.Metrics, health: setup.Health,
		grace: setup.Grace, gone: map[types.UID]time.Time{},
		lending: newTurns(mostLending), ending: newTurns(mostEnding),
	}
	if d.metrics == nil {
		d.metrics = NewMetrics()
	}
	if err := d.refresh(); err != nil {
		return nil, err
	}
	if err := d.files.sweep(); err != nil {
		klog.Background().Error(err, "specs of an earlier driver are left")
	}
	return d, nil
}

// refresh reads the records if any was written or removed, by any process.
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
	ctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	return forEach(claims, func(claim *resourceapi.ResourceClaim) (types.UID, kubeletplugin.PrepareResult) {
		begun := time.Now()
		devices, err := d.prepare(ctx, claim)
		d.metrics.prepared(err, time.Since(begun))
		if err != nil {
			klog.FromContext(ctx).Error(err, "prepare", "claim", klog.KObj(claim))
		}
		return claim.UID, kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}), nil
}

// forEach runs do for each element, all at a time, and collects the results.
func forEach[T, R any](all []T, do func(T) (types.UID, R)) map[types.UID]R {
	results := map[types.UID]R{}
	var mu sync.Mutex
	var done sync.WaitGroup
	for _, one := range all {
		done.Go(func() {
			uid, result := do(one)
			mu.Lock()
			defer mu.Unlock()
			results[uid] = result
		})
	}
	done.Wait()
	return results
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
	unlock, err := d.files.lock(ctx, claim.UID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	kept, err := d.recordFor(ctx, claim, all)
	if err != nil {
		return nil, err
	}
	lent, err := d.lend(ctx, kept, all)
	if err != nil {
		return nil, err
	}
	hasLibrary := false
	var devices []kubeletplugin.Device
	var specs []cdiDevice
	for nth, one := range all {
		id := fmt.Sprintf("%s-%d", claim.UID, one.index)
		if one.config.Launcher {
			specs = append(specs, d.library.launcher(id, !hasLibrary))
			hasLibrary = true
		} else {
			specs = append(specs, device(id, where[nth], lent.loans[nth].Path, one.bytes))
		}
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{one.result.Request}, PoolName: one.result.Pool, DeviceName: one.result.Device,
			ShareID: one.result.ShareID, CDIDeviceIDs: []string{cdiKind + "=" + id},
		})
	}
	if err := write(d.files.spec(claim.UID), spec(specs)); err != nil {
		return nil, errors.Join(err, d.giveUp(ctx, lent))
	}
	d.metrics.lent(lent.loans)
	d.status.Tell(claim, where, all, lent.loans)
	return devices, nil
}

// recordFor a claim, on disk: its loans have the names that they had before, if it was prepared before.
func (d *Driver) recordFor(ctx context.Context, claim *resourceapi.ResourceClaim, all []allotted) (record, error) {
	earlier, isThere, err := d.files.read(claim.UID)
	if err != nil {
		klog.FromContext(ctx).Error(err, "a record of before is replaced")
	}
	if isThere && earlier.Namespace != claim.Namespace {
		return record{}, fmt.Errorf("claim %s of namespace %q has loans as one of namespace %q", claim.UID, claim.Namespace, earlier.Namespace)
	}
	scope := earlier.scope()
	if !isThere {
		if scope, err = d.scopeOf(ctx, claim); err != nil {
			return record{}, err
		}
	}
	kept := recordOf(claim, scope, all)
	if isThere {
		kept.Loans = earlier.names(claim.UID, all)
	}
	return kept, d.keep(kept)
}

// recordOf a claim with loans of that scope.
func recordOf(claim *resourceapi.ResourceClaim, scope string, all []allotted) record {
	kept := record{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, Bytes: map[string]int64{}}
	for _, one := range all {
		kept.Bytes[one.result.Device] += one.bytes
		kept.Loans = append(kept.Loans, loanName(scope, claim.UID, one.index))
	}
	return kept
}

// keep a record, on disk and in mind. For the holder of the claim's lock.
func (d *Driver) keep(kept record) error {
	if err := write(d.files.record(kept.UID), kept); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records[kept.UID] = kept
	delete(d.gone, kept.UID)
	return nil
}

// scopeOf a claim's loans: its namespace, as it is now. One that is deleted and made anew is another.
func (d *Driver) scopeOf(ctx context.Context, claim *resourceapi.ResourceClaim) (string, error) {
	namespace, err := d.kube.CoreV1().Namespaces().Get(ctx, claim.Namespace, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("whose claim it is: %w", err)
	}
	if namespace.UID == "" || namespace.CreationTimestamp.After(claim.CreationTimestamp.Time) {
		return "", fmt.Errorf("namespace %q was made anew after claim %q: it is another one's", claim.Namespace, claim.Name)
	}
	return Scope(claim.Namespace, namespace.UID), nil
}

// UnprepareResourceClaims returns the loans of each claim. An unknown claim counts as done.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	return forEach(claims, func(claim kubeletplugin.NamespacedObject) (types.UID, error) {
		begun := time.Now()
		err := d.unprepare(ctx, claim.Namespace, claim.UID, func() bool { return true })
		d.metrics.unprepared(err, time.Since(begun))
		return claim.UID, err
	}), nil
}

// unprepare a claim, if it is still to be when its turn has come.
func (d *Driver) unprepare(ctx context.Context, namespace string, uid types.UID, isStillMeant func() bool) error {
	if !plain.MatchString(string(uid)) {
		// Invalid names have no loans, and their paths would belong to others.
		return nil
	}
	unlock, err := d.files.lock(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	if !isStillMeant() {
		return nil
	}
	kept, isThere, err := d.files.read(uid)
	if err != nil {
		klog.FromContext(ctx).Error(err, "its loans are found by their names")
	}
	if isThere && kept.Namespace != namespace {
		// Of all claims there is one with this UID, and it is in another namespace.
		return nil
	}
	if err := d.release(ctx, namespace, uid, kept.Loans); err != nil {
		return err
	}
	// The record last: until then a later start knows the claim of the loans.
	if err := errors.Join(remove(d.files.spec(uid)), remove(d.files.record(uid))); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.records, uid)
	delete(d.gone, uid)
	return nil
}

// taken is what claims have of each device, as the scheduler counts it, and how many claims that are.
func (d *Driver) taken() (map[string]int64, int) {
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
	return taken, len(d.records)
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

// Fatal is an error after which the driver serves no claim: it must be started again.
func (d *Driver) Fatal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fatal
}
