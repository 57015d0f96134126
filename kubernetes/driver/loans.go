// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"errors"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"prezero/agent"
	"prezero/varlink"
)

// lending is what came of asking for all loans of a claim.
type lending struct {
	record record
	// By device, with what went wrong.
	loans []agent.Lent
	errs  []error
	// Those that an earlier call has: a pod may use them.
	before map[string]bool
}

// lend all devices of a claim, at a time. What cannot be had whole holds nothing: others may want it until
// the kubelet tries again.
func (d *Driver) lend(ctx context.Context, kept record, all []allotted) (*lending, error) {
	there, err := d.loansOf(ctx, kept.scope()+"/", kept.Namespace, kept.UID)
	if err != nil {
		return nil, err
	}
	lent := &lending{kept, make([]agent.Lent, len(all)), make([]error, len(all)), map[string]bool{}}
	for _, loan := range there {
		lent.before[loan.Name] = !loan.Pending
	}
	// The first that goes wrong ends the others, and is the reason.
	lendCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var done sync.WaitGroup
	for nth, one := range all {
		done.Go(func() {
			lent.loans[nth], lent.errs[nth] = d.lendOne(lendCtx, kept, nth, one)
			if lent.errs[nth] != nil {
				stop(lent.errs[nth])
			}
		})
	}
	done.Wait()
	if lendCtx.Err() != nil {
		return nil, errors.Join(context.Cause(lendCtx), d.giveUp(ctx, lent))
	}
	return lent, nil
}

func (d *Driver) lendOne(ctx context.Context, kept record, nth int, one allotted) (agent.Lent, error) {
	if one.config.Launcher {
		// It will borrow by itself. To return a loan that is none is no error.
		return agent.Lent{}, nil
	}
	release, err := d.lending.take(ctx, kept.Namespace)
	if err != nil {
		return agent.Lent{}, err
	}
	defer release()
	lent, err := d.agent.Lend(ctx, agent.Lend{
		Name: kept.Loans[nth], Bytes: one.bytes, PageBytes: one.kind.page, Node: &one.kind.node, Whole: true,
		UID: one.config.UID, GID: one.config.GID, Owner: one.owner, KeepSeconds: one.keep,
	})
	if err == nil && !lent.Found {
		klog.FromContext(ctx).Info("lent", "name", kept.Loans[nth], "bytes", one.bytes, "ready", lent.ReadyBytes(), "kept", lent.Kept)
	}
	return lent, err
}

// giveUp returns what a failed call has lent, also where the answer was lost. Zeros that no pod used are
// discarded, content that an owner left stays kept. Loans of an earlier call stay as they are.
func (d *Driver) giveUp(ctx context.Context, lent *lending) error {
	// The call may have ended, and its loans are still there.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpWithin)
	defer cancel()
	var failed error
	for nth, name := range lent.record.Loans {
		var unreachable *varlink.Unreachable
		isLost := errors.As(lent.errs[nth], &unreachable)
		if lent.before[name] || (lent.errs[nth] != nil && !isLost) {
			continue
		}
		end := d.agent.Discard
		if isLost || lent.loans[nth].Kept || lent.loans[nth].Found {
			end = d.agent.Return
		}
		failed = errors.Join(failed, end(ctx, name))
	}
	return failed
}

// release returns all loans of a claim by their names, which also ends loans that are being made.
// Where the record has no names, after a crash or from an older driver, the daemon's list says
// them.
func (d *Driver) release(ctx context.Context, namespace string, uid types.UID, names []string) error {
	if len(names) == 0 {
		there, err := d.loansOf(ctx, namespace, namespace, uid)
		if err != nil {
			return err
		}
		for _, loan := range there {
			names = append(names, loan.Name)
		}
	}
	for _, name := range names {
		if err := d.end(ctx, namespace, name); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("returned", "name", name)
	}
	return nil
}

func (d *Driver) end(ctx context.Context, namespace, name string) error {
	release, err := d.ending.take(ctx, namespace)
	if err != nil {
		return err
	}
	defer release()
	return d.agent.Return(ctx, name)
}

// loansOf a claim that the daemon has, pending ones included, among those of a prefix.
func (d *Driver) loansOf(ctx context.Context, prefix, namespace string, uid types.UID) ([]agent.Loan, error) {
	release, err := d.ending.take(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer release()
	all, err := d.agent.Loans(ctx, prefix)
	var its []agent.Loan
	for _, loan := range all {
		scope, rest, _ := strings.Cut(loan.Name, "/")
		tenant, _, _ := strings.Cut(scope, "@")
		// Drivers of before wrote no mark.
		if tenant == namespace && strings.HasPrefix(strings.TrimPrefix(rest, mark), string(uid)+".") {
			its = append(its, loan)
		}
	}
	return its, err
}
