#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# calls.sh SEEDS COUNT - the same calls on the kernel's files and on the daemon's
#
# For each seed: so many calls of any kind on the kernel's files and on those that the daemon serves for
# blocks of its own over the same kernel, on a pool none of which is zeroed. What came of them has to be
# one text. It prints the lines that differ, and fails where there are any.
seeds=$1 count=$2
kernel=/sys/devices/system/node
daemon=/run/prezero/tree
pool=node0/hugepages/hugepages-2048kB

for seed in $(seq "$seeds"); do
	echo 0 > $kernel/$pool/nr_hugepages
	echo 0 > $kernel/$pool/zeroed_low
	echo 24 > $kernel/$pool/nr_hugepages
	calls $kernel "$seed" "$count" > /tmp/kernel."$seed" || exit 1
done

echo 0 > $kernel/$pool/zeroed_low
printf 'provider = "stock"\n[[pool]]\npage_size = "2M"\n' > /tmp/stock.toml
prezero serve --config /tmp/stock.toml &
until [ -e $daemon/$pool/zeroable_hugepages ]; do sleep 0.1; done
differ=0
for seed in $(seq "$seeds"); do
	echo 0 > $daemon/$pool/zeroed_low
	prezero release all > /tmp/said || { cat /tmp/said; exit 1; }
	[ "$(cat $daemon/$pool/zeroable_hugepages)" = 24 ] || { echo "seed $seed: not all is zeroable"; prezero status; }
	calls $daemon "$seed" "$count" > /tmp/daemon."$seed" || exit 1
	if ! diff /tmp/kernel."$seed" /tmp/daemon."$seed" > /tmp/differs; then
		echo "seed $seed:"
		head -20 /tmp/differs
		differ=1
	fi
done
echo "$(cat /tmp/kernel.* | wc -l) calls"
exit $differ
