// SPDX-License-Identifier: Apache-2.0 OR MIT

// etcd, from its server's module: the module that holds its command replaces others by directories, and
// so cannot be built from elsewhere.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
