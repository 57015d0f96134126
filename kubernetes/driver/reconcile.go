// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"errors"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// listPage is how many claims of a namespace are read at a time, where no record names the claim of a loan.
const listPage = 500

// holding is a claim that this node has a loan or a record of.
type holding struct {
	namespace string
	uid       types.UID
	// The claim's name, which only a record has, and the scope of its loans, which only a loan has.
	name, scope string
}

// Reconcile returns the loans of claims that have not been this node's for the time of grace. The daemon's
// list says which loans there are and the API server says where their claims are allocated: a node that was
// reset, a lost record and a claim that moved to another node are one case. Claims that the kubelet has for
// its pods need no look.
func (d *Driver) Reconcile(ctx context.Context) error {
	held, failed := d.holdings(ctx)
	d.forgetGone(held)
	used, err := d.kubelet.Claims(ctx)
	if err != nil {
		// Each claim then costs a call of the API server.
		klog.FromContext(ctx).Error(err, "the kubelet does not say which claims its pods have")
	}
	for uid, one := range held {
		isThere := used[uid]
		if !isThere || one.name == "" {
			claim, err := d.find(ctx, one)
			if err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			isThere = isThere || d.isOurs(claim)
			if isThere && one.name == "" && claim != nil {
				failed = errors.Join(failed, d.adopt(ctx, one, claim))
			}
		}
		failed = errors.Join(failed, d.apply(ctx, one, isThere))
	}
	return failed
}

// holdings returns the claims in the records and in the daemon's loans with this driver's mark, by UID.
func (d *Driver) holdings(ctx context.Context) (map[types.UID]holding, error) {
	held := map[types.UID]holding{}
	loans, failed := d.agent.Loans(ctx, "")
	for _, loan := range loans {
		if scope, namespace, uid, isOurs := claimOf(loan.Name); isOurs {
			held[uid] = holding{namespace: namespace, uid: uid, scope: scope}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	failed = errors.Join(failed, d.refresh())
	for uid, one := range d.records {
		held[uid] = holding{namespace: one.Namespace, uid: uid, name: one.Name, scope: held[uid].scope}
	}
	return held, failed
}

// find reads the claim from the API server. It returns nil where the claim is gone or its name is another's.
func (d *Driver) find(ctx context.Context, one holding) (*resourceapi.ResourceClaim, error) {
	claims := d.kube.ResourceV1().ResourceClaims(one.namespace)
	if one.name != "" {
		claim, err := claims.Get(ctx, one.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || (err == nil && claim.UID != one.uid) {
			return nil, nil
		}
		return claim, err
	}
	options := metav1.ListOptions{Limit: listPage}
	for {
		page, err := claims.List(ctx, options)
		if err != nil {
			return nil, err
		}
		for nth := range page.Items {
			if page.Items[nth].UID == one.uid {
				return &page.Items[nth], nil
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil, nil
		}
	}
}

// isOurs tells whether a claim is allocated on this node and reserved for a pod.
func (d *Driver) isOurs(claim *resourceapi.ResourceClaim) bool {
	if claim == nil || claim.Status.Allocation == nil || len(claim.Status.ReservedFor) == 0 {
		return false
	}
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(result resourceapi.DeviceRequestAllocationResult) bool {
		return result.Driver == Name && result.Pool == d.node
	})
}

// adopt writes the record that a loan's claim lacks, so that its devices are counted again.
func (d *Driver) adopt(ctx context.Context, one holding, claim *resourceapi.ResourceClaim) error {
	unlock, err := d.files.lock(ctx, one.uid)
	if err != nil {
		return err
	}
	defer unlock()
	if _, isThere, err := d.files.read(one.uid); err == nil && isThere {
		return nil
	}
	all, err := allocation(claim)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("a loan has no record: it is written anew", "claim", klog.KObj(claim), "uid", one.uid)
	return d.keep(recordOf(claim, one.scope, all))
}

// apply what was found of a claim: one that is gone for long enough is unprepared.
func (d *Driver) apply(ctx context.Context, one holding, isThere bool) error {
	if !d.isDue(one.uid, isThere) {
		return nil
	}
	klog.FromContext(ctx).Info("a claim is not this node's", "namespace", one.namespace, "name", one.name, "uid", one.uid)
	ctx, cancel := context.WithTimeout(ctx, reconcileWithin)
	defer cancel()
	err := d.unprepare(ctx, one.namespace, one.uid, func() bool {
		// A pod may have got it while this waited for the claim's lock.
		claim, err := d.find(ctx, one)
		return err == nil && !d.isOurs(claim) && d.isDue(one.uid, false)
	})
	if err == nil {
		d.metrics.reclaimed()
	}
	return err
}

// isDue tells whether a claim has been gone for the time of grace, and notes whether it is there.
func (d *Driver) isDue(uid types.UID, isThere bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if isThere {
		delete(d.gone, uid)
		return false
	}
	since, noted := d.gone[uid]
	if !noted {
		d.gone[uid] = time.Now()
	}
	return noted && time.Since(since) >= d.grace
}

// forgetGone claims that nothing is held for any more.
func (d *Driver) forgetGone(held map[types.UID]holding) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid := range d.gone {
		if _, is := held[uid]; !is {
			delete(d.gone, uid)
		}
	}
}
