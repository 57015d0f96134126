# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# twice.sh NAME... - what programs.sh calls so, first on soiled pages and then on zeroed ones
#
# Both have to print the same, and who finds pages ready takes each that it touches from those: as many
# as were cleared for it without, or for a program that says so as many, or at least as many, as it has
# in the end. A program that refuses to run on huge pages takes none.
export PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin LC_ALL=C
pool=/sys/devices/system/node/node0/hugepages/hugepages-2048kB
. /programs/programs.sh

# once STATE: the outcome, the status, and "hits misses"
once() {
	pool soil
	[ "$1" = dirty ] || echo max > $pool/zeroable_hugepages
	rm -f /tmp/used /tmp/least /tmp/none
	set -- "$1" $(pool counts)
	"$name" > /tmp/"$1".out 2> /tmp/"$1".err
	echo "status $?" >> /tmp/"$1".out
	end=$(pool counts)
	hits=$((${end% *} - $2)) misses=$((${end#* } - $3))
	n=0
	until [ "$(pool used)" = 0 ] || [ $n = 50 ]; do sleep 0.1; n=$((n + 1)); done
}

# says STATUS TEXT: a line of TAP
says() {
	test=$((test + 1))
	if [ "$1" = 0 ]; then echo "ok $test $2"; else echo "not ok $test $2"; bad=1 failed=1; fi
}

test=0 failed=0
echo "1..$((2 * $#))"
for name; do
	bad=0
	echo 0 > /sys/module/prezero/parameters/verify
	! command -v "prepare_$name" > /dev/null || "prepare_$name" > /tmp/prepare.log 2>&1 || cat /tmp/prepare.log
	once dirty
	cleared=$misses early=$hits
	once ready
	cmp -s /tmp/dirty.out /tmp/ready.out && grep -q '^status 0$' /tmp/ready.out
	says $? "$name: the same outcome on pages that are ready as on those that are not"
	touched=$cleared
	[ ! -e /tmp/used ] || touched=$(cat /tmp/used)
	[ ! -e /tmp/least ] || [ "$hits" -lt "$(cat /tmp/least)" ] || touched=$hits
	least=1 what="the pages that it touches were ready"
	[ ! -e /tmp/none ] || least=0 touched=0 what="it refuses, and touches none"
	[ "$early" = 0 ] && [ "$hits" -ge $least ] && [ "$misses" = 0 ] && [ "$hits" = "$touched" ] && [ "$(pool used)" = 0 ]
	says $? "$name: $what ($hits hits, $misses misses; without $early and $cleared)"
	[ $bad = 0 ] || for file in dirty.out dirty.err ready.out ready.err; do
		echo "# $name $file:"
		tail -15 /tmp/$file | sed 's/^/#   /'
	done
	[ ! -e /tmp/used ] || echo "# $name has $touched pages in the end"
done
exit $failed
