#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# lock-hold.sh PAGES - the longest time for which a zeroer holds hugetlb_lock
#
# Zeroes PAGES pages of 2 MiB of node 0 and traces the locks that it takes, in ticks of the time
# stamp counter. The tracer adds to each hold; the shortest time between two events of the trace
# limits how much of a hold is the tracer's.
set -e
pages=$1
pool=/sys/devices/system/node/node0/hugepages/hugepages-2048kB
tracing=/sys/kernel/tracing

cd $tracing
echo x86-tsc > trace_clock
echo '_raw_spin_*' > set_ftrace_filter
echo $$ > set_ftrace_pid
echo function > current_tracer
echo "$pages" > $pool/zeroable_hugepages
echo 0 > tracing_on
busybox awk '
	/^#/ { next }
	{ now = $4 + 0 }
	last && (!least || now - last < least) { least = now - last }
	/_lock_irq <-(hugetlb_zero_run|prezero_job)/ { locked = now }
	/_unlock_irq <-(hugetlb_zero_run|prezero_job)/ && locked {
		holds++
		if (now - locked > longest)
			longest = now - locked
		locked = 0
	}
	{ last = now }
	END {
		if (!holds) {
			print "no hold of hugetlb_lock was traced"
			exit 1
		}
		print holds " holds of hugetlb_lock, the longest " longest " with the tracer; two events are at least " least " apart"
	}' trace
