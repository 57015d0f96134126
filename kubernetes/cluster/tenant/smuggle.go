// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// smuggle keeps what steal does, and hands each descriptor to the listener at the socket: a process
// that ends with its pod would lose it.
func smuggle(socket string, ends <-chan os.Signal) {
	to, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		die(failed, "dial: %v", err)
	}
	kept, sent := map[string]*loot{}, map[string]bool{}
	againAndAgain(ends, func() {
		keepAll(kept)
		for path, one := range kept {
			if sent[path] {
				continue
			}
			if _, _, err := to.WriteMsgUnix([]byte(path), syscall.UnixRights(one.fd), nil); err != nil {
				die(failed, "send: %v", err)
			}
			sent[path] = true
		}
	})
}

// fence takes descriptors from one who smuggles, and when that has ended it opens each again and again, says
// what it finds, and writes the mark there.
func fence(socket string, mark byte, ends <-chan os.Signal) {
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		die(failed, "listen: %v", err)
	}
	fmt.Println("bytes 0 content 0 fence")
	from, err := listener.AcceptUnix()
	if err != nil {
		die(failed, "accept: %v", err)
	}
	var kept []*loot
	path, rights := make([]byte, 4096), make([]byte, syscall.CmsgSpace(4))
	for {
		n, m, _, _, err := from.ReadMsgUnix(path, rights)
		if n == 0 || err != nil {
			break
		}
		messages, err := syscall.ParseSocketControlMessage(rights[:m])
		if err != nil || len(messages) != 1 {
			die(failed, "%d messages: %v", len(messages), err)
		}
		fds, err := syscall.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			die(failed, "%d descriptors: %v", len(fds), err)
		}
		kept = append(kept, &loot{fd: fds[0]})
		fmt.Printf("kept %d by %s\n", fds[0], path[:n])
	}
	againAndAgain(ends, func() {
		for _, one := range kept {
			// A line each time that something else is found.
			if found := one.open(mark); found != one.said {
				one.said = found
				fmt.Printf("descriptor %d %s\n", one.fd, found)
			}
		}
	})
}
