// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package varlink makes calls over a unix socket, one connection each, without descriptors.
package varlink

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// MostBytes bounds an answer: 256 loans of at most 800 bytes each.
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
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	message, err := json.Marshal(map[string]any{"method": method, "parameters": parameters})
	if err != nil {
		return err
	}
	answer, err := exchange(ctx, socket, append(message, 0))
	if err != nil {
		return &Unreachable{socket, err}
	}
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

func exchange(ctx context.Context, socket string, message []byte) ([]byte, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// A daemon that hangs up says why before: what there is to read tells.
	_, sent := conn.Write(message)
	answer, err := bufio.NewReader(io.LimitReader(conn, MostBytes)).ReadBytes(0)
	if err != nil {
		return nil, errors.Join(err, sent, ctx.Err())
	}
	return answer[:len(answer)-1], nil
}
