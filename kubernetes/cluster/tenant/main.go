// SPDX-License-Identifier: Apache-2.0 OR MIT

// tenant is all that the pods of `cargo xtask cluster` run: what holds a pod's namespaces, and a program
// that maps its claim and says what it finds there.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// page by page is how memory is first touched; every size of huge page is a multiple of it.
const page = 2 << 20

// Exit codes that a test tells apart.
const (
	failed = 1 + iota
	usage
	crashed   // as it was told to
	disturbed // by somebody who wrote to its memory
)

func main() {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	switch {
	case verb == "":
		// As a runtime starts what holds a pod's namespaces.
		<-ends
	case (verb == "use" || verb == "crash") && len(os.Args) == 4:
		use(os.Args[2], markOf(os.Args[3]), verb == "crash", ends)
	case verb == "make" && len(os.Args) == 5:
		length, err := strconv.ParseInt(os.Args[4], 10, 64)
		if err != nil || length <= 0 {
			die(usage, "%q is no length", os.Args[4])
		}
		create(os.Args[2], length)
		use(os.Args[2], markOf(os.Args[3]), false, ends)
	case verb == "steal" && len(os.Args) == 3:
		steal(markOf(os.Args[2]), ends)
	case verb == "smuggle" && len(os.Args) == 3:
		smuggle(os.Args[2], ends)
	case verb == "fence" && len(os.Args) == 4:
		fence(os.Args[2], markOf(os.Args[3]), ends)
	default:
		die(usage, "tenant [use FILE BYTE | crash FILE BYTE | make FILE BYTE LENGTH | steal BYTE | smuggle SOCKET | fence SOCKET BYTE]")
	}
}

func markOf(word string) byte {
	mark, err := strconv.ParseUint(word, 10, 8)
	if err != nil || mark == 0 {
		die(usage, "%q is no byte but 0", word)
	}
	return byte(mark)
}

// create makes a file of that length, as a pod does that has huge pages of its own instead of a claim.
func create(path string, length int64) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		die(failed, "create: %v", err)
	}
	defer file.Close()
	if err := file.Truncate(length); err != nil {
		die(failed, "truncate to %d: %v", length, err)
	}
}

func die(code int, format string, values ...any) {
	fmt.Printf(format+"\n", values...)
	os.Exit(code)
}

// use says what the file's memory has, fills it with the mark, and sees that it stays so until the end.
// With isCrash it ends at once where it has found zeros.
func use(path string, mark byte, isCrash bool, ends <-chan os.Signal) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		die(failed, "open: %v", err)
	}
	about, err := file.Stat()
	if err != nil {
		die(failed, "stat: %v", err)
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, int(about.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		die(failed, "mmap of %d bytes: %v", about.Size(), err)
	}
	begun := time.Now()
	var sum byte
	for at := 0; at < len(memory); at += page {
		sum |= memory[at]
	}
	touched := time.Since(begun)
	found := content(memory)
	if sum != 0 && found == "0" {
		die(failed, "memory changes while it is read")
	}
	fmt.Printf("bytes %d content %s touched_us %d at_us %d\n", len(memory), found, touched.Microseconds(), begun.UnixMicro())
	fill(memory, mark)
	if isCrash && found == "0" {
		os.Exit(crashed)
	}
	want := strconv.Itoa(int(mark))
	for {
		select {
		case <-ends:
			return
		case <-time.After(200 * time.Millisecond):
			if now := content(memory); now != want {
				die(disturbed, "content %s, and %s was written", now, want)
			}
		}
	}
}

// content is the byte that all of it has, or "mixed".
func content(memory []byte) string {
	first := memory[0]
	whole := bytes.Repeat([]byte{first}, page)
	for at := 0; at < len(memory); at += page {
		if !bytes.Equal(memory[at:min(at+page, len(memory))], whole[:min(page, len(memory)-at)]) {
			return "mixed"
		}
	}
	return strconv.Itoa(int(first))
}

func fill(memory []byte, mark byte) {
	whole := bytes.Repeat([]byte{mark}, page)
	for at := 0; at < len(memory); at += page {
		copy(memory[at:], whole)
	}
}
