// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package agent speaks to the daemon's socket for agents: loans of zeroed huge pages by name.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"prezero/varlink"
)

// iface has the method Lend and every error, agents what only agents may call.
const (
	iface  = "io.prezero."
	agents = iface + "agent."
)

// The daemon may zero what a whole loan lacks, at some GiB a second; everything else is short.
const (
	lendWithin = 60 * time.Second
	within     = 10 * time.Second
)

// Client of one daemon. Its zero value is none; the socket is that of agents.
type Client struct {
	Socket string
}

// Loan is one loan by name.
type Loan struct {
	Name      string `json:"name"`
	Path      string `json:"path"`
	Bytes     int64  `json:"bytes"`
	PageBytes int64  `json:"page_bytes"`
	Node      int64  `json:"node"`
	UID       uint32 `json:"uid"`
	// Being made: it has no path yet, and ends with the connection that asked for it.
	Pending bool `json:"pending"`
}

// Lend is a request for a loan.
type Lend struct {
	Name      string  `json:"name"`
	Bytes     int64   `json:"bytes"`
	PageBytes int64   `json:"page_bytes,omitempty"`
	Node      *int64  `json:"node,omitempty"`
	Whole     bool    `json:"whole"`
	UID       *uint32 `json:"uid,omitempty"`
	GID       *uint32 `json:"gid,omitempty"`
	// The owner of the content, within the scope of the name, and how long it is kept after the
	// return.
	Owner       string `json:"owner,omitempty"`
	KeepSeconds int64  `json:"keep_seconds,omitempty"`
}

// Lent is a granted loan, or one found by that name. A loan by name has one part.
type Lent struct {
	Path  string `json:"path"`
	Found bool   `json:"found"`
	Kept  bool   `json:"kept"`
	Parts []struct {
		Bytes      int64 `json:"bytes"`
		ReadyBytes int64 `json:"ready_bytes"`
	} `json:"parts"`
}

// Bytes is its size.
func (l Lent) Bytes() int64 {
	var bytes int64
	for _, part := range l.Parts {
		bytes += part.Bytes
	}
	return bytes
}

// ReadyBytes is what was ready when the loan was granted.
func (l Lent) ReadyBytes() int64 {
	var ready int64
	for _, part := range l.Parts {
		ready += part.ReadyBytes
	}
	return ready
}

// Supply is what there is to lend on one node in pages of one size.
type Supply struct {
	Node       int64 `json:"node"`
	PageBytes  int64 `json:"page_bytes"`
	BlockBytes int64 `json:"block_bytes"`
	ReadyBytes int64 `json:"ready_bytes"`
	TotalBytes int64 `json:"total_bytes"`
	NamedBytes int64 `json:"named_bytes"`
	// In which blocks it is ready. A daemon that does not say has nothing that can be promised.
	ReadyBlocks []ReadyBlocks `json:"ready_blocks"`
}

// ReadyBlocks counts the ready blocks of one length; of none where one file may have all of it.
type ReadyBlocks struct {
	BlockBytes int64 `json:"block_bytes"`
	ReadyBytes int64 `json:"ready_bytes"`
}

// Lend lends by a name; the same name and size again are the same loan. One that is being made when the
// context ends is given back by the daemon.
func (c Client) Lend(ctx context.Context, ask Lend) (Lent, error) {
	var lent Lent
	err := varlink.Call(ctx, c.Socket, iface+"Lend", lendWithin, ask, &lent)
	return lent, plain(err)
}

// Return ends a loan, also one that is being made. That there is none by the name is no error: it was
// returned before.
func (c Client) Return(ctx context.Context, name string) error {
	return c.release(ctx, map[string]any{"name": name})
}

// Discard ends a loan without keeping content for its owner.
func (c Client) Discard(ctx context.Context, name string) error {
	return c.release(ctx, map[string]any{"name": name, "discard": true})
}

func (c Client) release(ctx context.Context, which map[string]any) error {
	err := varlink.Call(ctx, c.Socket, agents+"Return", within, which, nil)
	if Is(err, "NoSuchName") {
		return nil
	}
	return plain(err)
}

// Loans lists the loans with names that begin with prefix, in order, pending ones included.
func (c Client) Loans(ctx context.Context, prefix string) ([]Loan, error) {
	var all []Loan
	for {
		ask := map[string]any{"prefix": prefix}
		if len(all) > 0 {
			ask["after"] = all[len(all)-1].Name
		}
		var page struct {
			Loans []Loan `json:"loans"`
			More  bool   `json:"more"`
		}
		if err := varlink.Call(ctx, c.Socket, agents+"ListLoans", within, ask, &page); err != nil {
			return nil, plain(err)
		}
		all = append(all, page.Loans...)
		if !page.More || len(page.Loans) == 0 {
			return all, nil
		}
	}
}

// Supply says what there is to lend.
func (c Client) Supply(ctx context.Context) ([]Supply, error) {
	var reply struct {
		Supplies []Supply `json:"supplies"`
	}
	err := varlink.Call(ctx, c.Socket, agents+"GetSupply", within, struct{}{}, &reply)
	return reply.Supplies, plain(err)
}

// Is tells whether the daemon refused by that error of the interface.
func Is(err error, name string) bool {
	var refused *varlink.Error
	return errors.As(err, &refused) && refused.Name == iface+name
}

// refusal is a daemon's error in a line that people read in a pod's events.
type refusal struct {
	cause *varlink.Error
	text  string
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.cause }

func plain(err error) error {
	var refused *varlink.Error
	if !errors.As(err, &refused) {
		return err
	}
	var p struct {
		Scope  string `json:"scope"`
		Held   int64  `json:"held_bytes"`
		Quota  int64  `json:"quota_bytes"`
		Asked  int64  `json:"asked_bytes"`
		Page   int64  `json:"page_bytes"`
		Ready  int64  `json:"ready_bytes"`
		Free   int64  `json:"free_bytes"`
		Left   int64  `json:"left_free_bytes"`
		Used   int64  `json:"used_bytes"`
		Name   string `json:"name"`
		Bytes  int64  `json:"bytes"`
		Node   int64  `json:"node"`
		UID    uint32 `json:"uid"`
		Field  string `json:"field"`
		Reason string `json:"reason"`
		Needed string `json:"needed"`
		What   string `json:"what"`
		Most   int64  `json:"most"`
	}
	if json.Unmarshal(refused.Parameters, &p) != nil {
		return err
	}
	var text string
	switch refused.Name {
	case iface + "ScopeQuotaExceeded":
		text = fmt.Sprintf("quota of namespace %q exceeded: %d of %d bytes are held, %d more were asked for", p.Scope, p.Held, p.Quota, p.Asked)
	case iface + "NotEnough":
		text = fmt.Sprintf("not enough huge pages: %d bytes of %d-byte pages asked for, %d ready, %d free (%d of it by leave_free), %d in use", p.Asked, p.Page, p.Ready, p.Free, p.Left, p.Used)
	case iface + "NameTaken":
		text = fmt.Sprintf("%q is lent as another loan: %d bytes of %d-byte pages on node %d for user %d", p.Name, p.Bytes, p.Page, p.Node, p.UID)
	case iface + "NameBusy":
		text = fmt.Sprintf("the loan %q is being made: try again", p.Name)
	case iface + "TooManyNames":
		text = fmt.Sprintf("the daemon has %d loans by name, the most it may: raise agent.names", p.Most)
	case iface + "NotPermitted":
		text = "the daemon does not let this driver lend: " + p.Needed
	case iface + "BadValue":
		text = p.Field + ": " + p.Reason
	case iface + "Failed":
		text = p.What
	default:
		return err
	}
	return &refusal{refused, text}
}
