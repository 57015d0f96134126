// SPDX-License-Identifier: Apache-2.0 OR MIT

// Borrows 64 MiB by varlink: the memory comes as descriptors with the answer.
package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	"prezero"
)

func main() {
	socket := cmp.Or(os.Getenv("PREZERO_SOCKET"), prezero.DefaultSocket)
	loan, err := prezero.Lend(context.Background(), socket, prezero.Request{Bytes: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	// Unmaps the memory and returns it.
	defer loan.Close()
	fmt.Printf("loan %d: %d bytes were ready\n", loan.Lease, loan.ReadyBytes())

	// A slice for each block; with Request.Single there is one.
	for _, memory := range loan.Memory() {
		if bytes.Count(memory, []byte{0}) != len(memory) {
			log.Fatal("the memory is not zero")
		}
		copy(memory, "hello")
		fmt.Printf("%d bytes, all zero before %q\n", len(memory), memory[:5])
	}
}
