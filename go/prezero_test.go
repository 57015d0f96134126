// SPDX-License-Identifier: Apache-2.0 OR MIT

package prezero

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"prezero/varlink"
)

// daemon answers one call with this text and these files, and returns where, and what it was asked.
func daemon(t *testing.T, answer string, files ...*os.File) (string, <-chan string) {
	socket := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	asked := make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		call, _ := bufio.NewReader(conn).ReadString(0)
		asked <- call
		var fds []int
		for _, file := range files {
			fds = append(fds, int(file.Fd()))
		}
		// In two pieces: the descriptors come with the first.
		half := len(answer) / 2
		conn.(*net.UnixConn).WriteMsgUnix([]byte(answer[:half]), syscall.UnixRights(fds...), nil)
		conn.Write([]byte(answer[half:] + "\x00"))
	}()
	return socket, asked
}

// files makes a lease and a block of two pages.
func files(t *testing.T) []*os.File {
	var all []*os.File
	for _, name := range []string{"lease", "block"} {
		file, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		if err := file.Truncate(8192); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		all = append(all, file)
	}
	return all
}

const lent = `{"parameters":{"lease_fd":0,"lease":7,"page_bytes":4096,"kept":false,` +
	`"parts":[{"fd":1,"node":0,"bytes":8192,"ready_bytes":4096}]}}`

func TestLentMemoryIsTheFileThatCameWithTheAnswer(t *testing.T) {
	made := files(t)
	socket, asked := daemon(t, lent, made...)
	loan, err := Lend(context.Background(), socket, Request{Bytes: 8192, Owner: "db"})
	if err != nil {
		t.Fatal(err)
	}
	if call := <-asked; call != `{"method":"io.prezero.Lend","parameters":{"bytes":8192,"owner":"db"}}`+"\x00" {
		t.Error(call)
	}
	if loan.Lease != 7 || loan.ReadyBytes() != 4096 || len(loan.Memory()) != 1 {
		t.Errorf("%+v", loan)
	}
	loan.Memory()[0][8191] = 9
	if err := errors.Join(loan.Close(), loan.Close()); err != nil {
		t.Error(err)
	}
	var last [1]byte
	if _, err := made[1].ReadAt(last[:], 8191); err != nil || last[0] != 9 {
		t.Error(last, err)
	}
}

func TestRefusalAndMissingDescriptorAreErrors(t *testing.T) {
	socket, _ := daemon(t, `{"error":"io.prezero.NotEnough","parameters":{"ready_bytes":0}}`)
	_, err := Lend(context.Background(), socket, Request{Bytes: 8192})
	var refused *varlink.Error
	if !errors.As(err, &refused) || refused.Name != "io.prezero.NotEnough" {
		t.Error(err)
	}
	before := open(t)
	socket, _ = daemon(t, lent, files(t)[0])
	if _, err = Lend(context.Background(), socket, Request{Bytes: 8192}); err == nil || !strings.Contains(err.Error(), "no descriptor 1 of 1") {
		t.Error(err)
	}
	// The listener, its connection and two files of the test's own.
	if after := open(t); after > before+4 {
		t.Errorf("%d descriptors, then %d", before, after)
	}
	var none *varlink.Unreachable
	if _, err = Lend(context.Background(), "/nowhere/socket", Request{Bytes: 8192}); !errors.As(err, &none) {
		t.Error(err)
	}
}

// open counts this process's descriptors.
func open(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
