// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// lockPoll is the poll interval for a lock that another call holds: F_OFD_SETLKW has no deadline.
const lockPoll = 10 * time.Millisecond

// lock one claim against other calls of this driver, and of the driver that replaces it in an update. Each
// claim is one byte of one file, at the hash of its UID: nothing has to be removed, and the kernel frees the
// locks of a killed driver. Two claims with one hash wait for each other.
func (f files) lock(ctx context.Context, uid types.UID) (unlock func(), err error) {
	path := f.records + ".lock"
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	hash := fnv.New64a()
	hash.Write([]byte(uid))
	// The last byte of a file is before the largest offset.
	its := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(hash.Sum64() >> 2), Len: 1}
	for {
		err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &its)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if ctx.Err() != nil || !errors.Is(err, unix.EAGAIN) {
			file.Close()
			return nil, fmt.Errorf("another call for this claim: %w", errors.Join(err, context.Cause(ctx)))
		}
		pause(ctx, lockPoll)
	}
}
