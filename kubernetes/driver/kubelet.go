// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubeletWithin is the deadline of a call to the kubelet.
const kubeletWithin = 5 * time.Second

// Kubelet is asked by its socket of pod resources.
type Kubelet struct {
	Socket string
}

// Claims by UID that pods of this node have from this driver. It costs the API server nothing.
func (k Kubelet) Claims(ctx context.Context) (map[types.UID]bool, error) {
	conn, err := grpc.NewClient("unix://"+k.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, kubeletWithin)
	defer cancel()
	reply, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	used := map[types.UID]bool{}
	for _, pod := range reply.PodResources {
		for _, container := range pod.Containers {
			for _, claim := range container.DynamicResources {
				for _, from := range claim.ClaimResources {
					for _, device := range from.CdiDevices {
						if uid, is := claimOfDevice(device.Name); is {
							used[uid] = true
						}
					}
				}
			}
		}
	}
	return used, nil
}

// claimOfDevice is the claim of a CDI device of this driver's: KIND=<claim>-<index>.
func claimOfDevice(device string) (types.UID, bool) {
	name, isOurs := strings.CutPrefix(device, cdiKind+"=")
	at := strings.LastIndexByte(name, '-')
	if !isOurs || at <= 0 {
		return "", false
	}
	return types.UID(name[:at]), true
}
