// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package prezero borrows huge pages that are zero from the prezero daemon of this host.
//
//	loan, err := prezero.Lend(ctx, prezero.DefaultSocket, prezero.Request{Bytes: 8 << 30})
//	if err != nil { ... }
//	defer loan.Close()
//	for _, memory := range loan.Memory() { ... } // zero, at page-table cost
//
// Package agent lends by name, for programs that hand memory on to others.
package prezero

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"prezero/varlink"
)

// DefaultSocket is where the daemon of the package listens.
const DefaultSocket = "/run/prezero/io.prezero"

// A loan waits at most 2 s for what its owner left.
const within = 10 * time.Second

// Request says what to borrow. Bytes is required: whole pages.
type Request struct {
	Bytes int64 `json:"bytes"`
	// Page size in bytes. The daemon chooses where it is 0.
	PageBytes int64 `json:"page_bytes,omitempty"`
	// The node. Any node where it is nil.
	Node *int64 `json:"node,omitempty"`
	// Under which name the content is found again, and for how long it is kept after the return.
	Owner       string `json:"owner,omitempty"`
	KeepSeconds int64  `json:"keep_seconds,omitempty"`
	// Whether it must be one block.
	Single bool `json:"single,omitempty"`
	// The most blocks, a descriptor each. The daemon's choice where it is 0.
	MostBlocks int64 `json:"most_blocks,omitempty"`
}

// Part is one block of a loan.
type Part struct {
	FD         int   `json:"fd"`
	Node       int64 `json:"node"`
	Bytes      int64 `json:"bytes"`
	ReadyBytes int64 `json:"ready_bytes"`
}

// Loan is borrowed memory, mapped. It ends with Close, and with the process.
type Loan struct {
	// The number that `prezero status` shows.
	Lease     int64
	PageBytes int64
	// Whether the memory has the content that the owner left; it is zero otherwise.
	Kept  bool
	Parts []Part

	closing sync.Mutex
	lease   *os.File
	memory  [][]byte
}

// Lend borrows memory and maps it shared. It never waits for zeroing: the kernel zeroes what was not
// ready when the program touches it.
func Lend(ctx context.Context, socket string, request Request) (*Loan, error) {
	var reply struct {
		LeaseFD   int    `json:"lease_fd"`
		Lease     int64  `json:"lease"`
		PageBytes int64  `json:"page_bytes"`
		Kept      bool   `json:"kept"`
		Parts     []Part `json:"parts"`
	}
	files, err := varlink.CallFiles(ctx, socket, "io.prezero.Lend", within, request, &reply)
	// A mapping needs no descriptor.
	defer func() {
		for _, file := range files {
			file.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	loan := &Loan{Lease: reply.Lease, PageBytes: reply.PageBytes, Kept: reply.Kept, Parts: reply.Parts}
	for _, part := range reply.Parts {
		if part.FD < 0 || part.FD >= len(files) {
			return nil, errors.Join(fmt.Errorf("io.prezero.Lend: no descriptor %d of %d", part.FD, len(files)), loan.Close())
		}
		memory, err := syscall.Mmap(int(files[part.FD].Fd()), 0, int(part.Bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("map %d bytes: %w", part.Bytes, err), loan.Close())
		}
		loan.memory = append(loan.memory, memory)
	}
	if reply.LeaseFD < 0 || reply.LeaseFD >= len(files) {
		return nil, errors.Join(fmt.Errorf("io.prezero.Lend: no descriptor %d of %d", reply.LeaseFD, len(files)), loan.Close())
	}
	loan.lease, files = files[reply.LeaseFD], without(files, reply.LeaseFD)
	return loan, nil
}

func without(files []*os.File, index int) []*os.File {
	return append(append([]*os.File{}, files[:index]...), files[index+1:]...)
}

// Memory is the memory, a slice for each block; one slice of a loan with Single. It is gone after Close.
func (l *Loan) Memory() [][]byte { return l.memory }

// ReadyBytes counts the bytes that were ready.
func (l *Loan) ReadyBytes() int64 {
	var ready int64
	for _, part := range l.Parts {
		ready += part.ReadyBytes
	}
	return ready
}

// Close unmaps the memory and returns it. Later calls do nothing.
func (l *Loan) Close() error {
	l.closing.Lock()
	defer l.closing.Unlock()
	var failed error
	for _, memory := range l.memory {
		failed = errors.Join(failed, syscall.Munmap(memory))
	}
	l.memory = nil
	if l.lease != nil {
		failed = errors.Join(failed, l.lease.Close())
		l.lease = nil
	}
	return failed
}
