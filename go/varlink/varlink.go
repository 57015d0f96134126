// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package varlink makes calls over a unix socket, one connection each.
package varlink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// MostBytes bounds an answer: 256 loans of at most 800 bytes each, or 1024 blocks of one loan.
const MostBytes = 1 << 20

// Error is an error of the interface, as the service answered it.
type Error struct {
	// Name with the interface's before it.
	Name string
	// Parameters as they came.
	Parameters json.RawMessage
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s %s", e.Name, e.Parameters)
}

// Unreachable says that there was no answer: the call may have been carried out.
type Unreachable struct {
	Socket string
	Err    error
}

func (e *Unreachable) Error() string {
	return fmt.Sprintf("no answer at %s: %v", e.Socket, e.Err)
}

func (e *Unreachable) Unwrap() error { return e.Err }

// Call sends parameters to a method and reads its reply. It blocks until the answer, the context's
// end, or within, whichever is first.
func Call(ctx context.Context, socket, method string, within time.Duration, parameters, reply any) error {
	files, err := CallFiles(ctx, socket, method, within, parameters, reply)
	closeAll(files)
	return err
}

// CallFiles is Call for a method whose reply comes with descriptors, which the caller closes.
func CallFiles(ctx context.Context, socket, method string, within time.Duration, parameters, reply any) ([]*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	message, err := json.Marshal(map[string]any{"method": method, "parameters": parameters})
	if err != nil {
		return nil, err
	}
	answer, files, err := exchange(ctx, socket, append(message, 0))
	if err != nil {
		return nil, &Unreachable{socket, err}
	}
	if err := read(answer, socket, method, reply); err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

// read parses an answer.
func read(answer []byte, socket, method string, reply any) error {
	var parsed struct {
		Error      string          `json:"error"`
		Parameters json.RawMessage `json:"parameters"`
	}
	if err := json.Unmarshal(answer, &parsed); err != nil {
		return &Unreachable{socket, fmt.Errorf("%s: not an answer: %w", method, err)}
	}
	if parsed.Error != "" {
		return &Error{parsed.Error, parsed.Parameters}
	}
	if reply == nil || len(parsed.Parameters) == 0 {
		return nil
	}
	return json.Unmarshal(parsed.Parameters, reply)
}

func exchange(ctx context.Context, socket string, message []byte) ([]byte, []*os.File, error) {
	var dialer net.Dialer
	dialed, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil, err
	}
	conn := dialed.(*net.UnixConn)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// A daemon that hangs up says why before: what there is to read tells.
	_, sent := conn.Write(message)
	answer, files, err := receive(conn)
	if err != nil {
		closeAll(files)
		return nil, nil, errors.Join(err, sent, ctx.Err())
	}
	return answer, files, nil
}

// The most descriptors of one message, a constant of the kernel's (SCM_MAX_FD).
const mostFiles = 253

// receive reads up to the zero byte that ends an answer, and the descriptors on the way.
func receive(conn *net.UnixConn) ([]byte, []*os.File, error) {
	var answer []byte
	var files []*os.File
	part := make([]byte, 64<<10)
	control := make([]byte, syscall.CmsgSpace(4*mostFiles))
	for len(answer) < MostBytes {
		n, controlled, flags, _, err := conn.ReadMsgUnix(part, control)
		if err != nil {
			return nil, files, err
		}
		came, err := received(control[:controlled])
		files = append(files, came...)
		if err != nil {
			return nil, files, err
		}
		if flags&syscall.MSG_CTRUNC != 0 {
			return nil, files, errors.New("more descriptors than this process may have open")
		}
		if n == 0 {
			return nil, files, io.EOF
		}
		answer = append(answer, part[:n]...)
		if end := bytes.IndexByte(answer, 0); end >= 0 {
			return answer[:end], files, nil
		}
	}
	return nil, files, fmt.Errorf("an answer of more than %d bytes", MostBytes)
}

// received lists the descriptors of a control message.
func received(control []byte) ([]*os.File, error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, message := range messages {
		fds, err := syscall.ParseUnixRights(&message)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "lent"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}
