#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# run.sh NAME... - programs of a Debian's disk, each on pages that are ready and on pages that are not
#
# The disk is read only; what programs write is in memory.
b=/bin/busybox
if ! [ -e /debian ]; then
	$b mkdir -p /lower /upper /debian
	mount -t ext4 -o ro /dev/vda /lower || exit 1
	mount -t tmpfs tmpfs /upper && $b mkdir /upper/files /upper/work
	mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /debian || exit 1
	for at in dev proc sys; do mount -o rbind /$at /debian/$at; done
	for at in tmp run; do mount -t tmpfs -o mode=1777 tmpfs /debian/$at; done
	$b cp -r tests/vm/programs /debian/programs
	$b cp /bin/pool /bin/touch-go /bin/touch-musl /bin/guest /bin/plug /debian/usr/local/bin/
fi
exec $b chroot /debian /bin/sh /programs/twice.sh "$@"
