// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// Sockets by which the kubelet finds the driver, as the plugin helper names them.
func Sockets(registry, data, podUID string) []string {
	if podUID == "" {
		return []string{filepath.Join(registry, Name+"-reg.sock"), filepath.Join(data, "dra.sock")}
	}
	file := kubeletplugin.RollingUpdateRegistrarSocketFile(registry, Name, types.UID(podUID))
	return []string{filepath.Join(registry, file), filepath.Join(data, "dra-"+podUID+".sock")}
}

// Guard returns when one of the sockets is gone, or the context ends. A driver without its sockets
// is unreachable without an error. The kubelet, or a program that cleaned up its directories, makes
// them anew, and in a pod they are others than the mounted ones.
func Guard(ctx context.Context, sockets []string) error {
	for ; ctx.Err() == nil; pause(ctx, time.Second) {
		for _, path := range sockets {
			if _, err := os.Lstat(path); err != nil && ctx.Err() == nil {
				return fmt.Errorf("the kubelet cannot find this driver any more: %w", err)
			}
		}
	}
	return nil
}
