// SPDX-License-Identifier: Apache-2.0 OR MIT

// touch maps huge pages by the system call itself, as a static program of Go does: no library is
// between it and the kernel. It looks at every byte, writes every page and prints what it found.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
)

const page = 2 << 20

func main() {
	pages, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for _, how := range []int{syscall.MAP_PRIVATE, syscall.MAP_SHARED} {
		memory, err := syscall.Mmap(-1, 0, pages*page, syscall.PROT_READ|syscall.PROT_WRITE,
			how|syscall.MAP_ANON|syscall.MAP_HUGETLB)
		if err != nil {
			fmt.Fprintln(os.Stderr, "huge pages:", err)
			os.Exit(1)
		}
		var threads sync.WaitGroup
		sums := make([]int, 4)
		for thread := range sums {
			threads.Add(1)
			go func() {
				defer threads.Done()
				for at := thread * page; at < len(memory); at += len(sums) * page {
					for _, b := range memory[at : at+page] {
						sums[thread] += int(b)
					}
					memory[at] = 1
				}
			}()
		}
		threads.Wait()
		written := 0
		for at := 0; at < len(memory); at += page {
			written += int(memory[at])
		}
		fmt.Println(pages, "pages:", sums, written)
		if err := syscall.Munmap(memory); err != nil {
			fmt.Fprintln(os.Stderr, "munmap:", err)
			os.Exit(1)
		}
	}
}
