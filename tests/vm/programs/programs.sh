# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# One function for each program. It prints what has to be the same each time; prepare_NAME is what
# comes before, and is not counted.

# How many pages it has, before a server gives them back.
has() { pool used > /tmp/used; }

# The same of one that maps pages and gives them back meanwhile, as many as its threads come to.
has_at_least() { pool used > /tmp/least; }

# That it takes none: it says why, and ends.
refuses() { : > /tmp/none; }

# For a program that does not look at its memory itself: the module does when it is given.
verified() { echo 1 > /sys/module/prezero/parameters/verify; }

# until_said FILE TEXT: what was started last has written the text
until_said() {
	n=0
	until grep -q "$2" "$1" 2> /dev/null; do
		sleep 0.5
		n=$((n + 1))
		kill -0 $! 2> /dev/null && [ $n -lt 240 ] || { echo "no $2 in $1:" >&2; tail -5 "$1" >&2; return 1; }
	done
}

go() { touch-go 48; }

musl() { touch-musl 24; }

# A guest that finds its memory zero, writes it and reads it back.
guest() {
	rm -f /tmp/verdict
	qemu-system-x86_64 -accel tcg -machine q35,memory-backend=ram -m 64M -object "$1,id=ram,size=64M" \
		-display none -nodefaults -no-user-config -kernel /usr/local/bin/guest \
		-chardev file,id=dbg,path=/tmp/verdict -device isa-debugcon,chardev=dbg,iobase=0xe9 &
	until_said /tmp/verdict .
	status=$?
	has
	kill $!
	wait $!
	cat /tmp/verdict
	return $status
}

qemu_file() { guest memory-backend-file,mem-path=/dev/hugepages; }
qemu_memfd() { guest memory-backend-memfd,hugetlb=on,hugetlbsize=2M; }
qemu_prealloc() { guest memory-backend-memfd,hugetlb=on,hugetlbsize=2M,prealloc=on; }
qemu_shared_prealloc() { guest memory-backend-file,mem-path=/dev/hugepages,share=on,prealloc=on; }

bare="qemu-system-x86_64 -accel tcg -display none -nodefaults -no-user-config"

qmp() { perl /programs/qmp.pl "$@"; }

# Memory for a slot of a machine that waits. Nothing but QEMU reads it there.
qemu_dimm() {
	$bare -machine q35 -S -m 64M,slots=1,maxmem=256M -qmp unix:/tmp/qmp,server=on,wait=off &
	qmp /tmp/qmp object-add '"qom-type": "memory-backend-file", "id": "later", "size": 67108864,
		"mem-path": "/dev/hugepages", "share": true, "prealloc": true' \
		device_add '"driver": "pc-dimm", "id": "dimm", "memdev": "later"' \
		query-memory-devices '' > /tmp/plugged || return 1
	grep -o '"size": [0-9]*' /tmp/plugged
	at=$(grep -o '"addr": [0-9]*' /tmp/plugged)
	qmp /tmp/qmp pmemsave '"val": '"${at#*: }"', "size": 67108864, "filename": "/tmp/dimm"'
	cmp -n 67108864 /tmp/dimm /dev/zero && echo "all of it is zero"
	has
	qmp /tmp/qmp quit
	wait $!
	status=$?
	rm -f /tmp/dimm
	return $status
}

# Memory that a guest plugs into itself, and gives back, as its host asks. The device takes the pages.
prepare_qemu_virtio_mem() { verified; }

qemu_virtio_mem() {
	rm -f /tmp/verdict
	$bare -machine q35 -m 64M,maxmem=1G -kernel /usr/local/bin/plug \
		-object memory-backend-memfd,id=later,hugetlb=on,hugetlbsize=2M,size=256M \
		-device virtio-mem-pci,id=mem,memdev=later,prealloc=on,requested-size=64M \
		-chardev file,id=dbg,path=/tmp/verdict -device isa-debugcon,chardev=dbg,iobase=0xe9 \
		-qmp unix:/tmp/qmp,server=on,wait=off &
	until_said /tmp/verdict '^plugged' || return 1
	qmp /tmp/qmp query-memory-devices '' | grep -o '"size": [0-9]*'
	has
	qmp /tmp/qmp qom-set '"path": "/machine/peripheral/mem", "property": "requested-size", "value": 0'
	until_said /tmp/verdict unplugged || return 1
	cat /tmp/verdict
	qmp /tmp/qmp query-memory-devices '' | grep -o '"size": [0-9]*'
	echo "$(pool used) pages left"
	qmp /tmp/qmp quit
	wait $!
}

# The machine's memory goes to another QEMU, which runs before it has all of it. Pages that come by
# userfaultfd are not cleared: the count is of those before, the content is looked at in all.
qemu_postcopy() {
	rm -f /tmp/verdict /tmp/migrated
	ram="memory-backend-memfd,id=ram,size=64M,hugetlb=on,hugetlbsize=2M"
	machine="-machine q35,memory-backend=ram -m 64M"
	memory='"val": 16777216, "size": 16777216, "filename"'
	$bare $machine -object $ram,prealloc=on -kernel /usr/local/bin/guest -qmp unix:/tmp/qmp,server=on,wait=off \
		-chardev file,id=dbg,path=/tmp/verdict -device isa-debugcon,chardev=dbg,iobase=0xe9 &
	from=$!
	until_said /tmp/verdict . || return 1
	cat /tmp/verdict
	has_at_least
	$bare $machine -object $ram -incoming defer -qmp unix:/tmp/other,server=on,wait=off \
		-chardev file,id=dbg,path=/dev/null -device isa-debugcon,chardev=dbg,iobase=0xe9 &
	postcopy='"capabilities": [{"capability": "postcopy-ram", "state": true}]'
	qmp /tmp/other migrate-set-capabilities "$postcopy" migrate-incoming '"uri": "unix:/tmp/migration"'
	# So slow that nearly all is left for the second half, which has no limit.
	qmp /tmp/qmp pmemsave "$memory"': "/tmp/before"' migrate-set-capabilities "$postcopy" \
		migrate-set-parameters '"max-bandwidth": 4096' \
		migrate '"uri": "unix:/tmp/migration"' migrate-start-postcopy ''
	for n in $(seq 120); do
		qmp /tmp/qmp query-migrate '' > /tmp/migrated
		! grep -q '"status": "\(completed\|failed\)"' /tmp/migrated || break
		sleep 1
	done
	status=0
	grep -o '"status": "completed"' /tmp/migrated && grep -o '"postcopy-bytes": [1-9]' /tmp/migrated > /tmp/moved || {
		cat /tmp/migrated >&2
		status=1
	}
	qmp /tmp/other query-status '' pmemsave "$memory"': "/tmp/after"' | grep -o '"status": "[a-z-]*"'
	cmp /tmp/before /tmp/after && echo "the same content" || status=1
	qmp /tmp/qmp quit
	qmp /tmp/other quit
	wait $! && wait $from || status=1
	rm -f /tmp/before /tmp/after
	return $status
}

# Files with names, which a second process maps; they stay until they are removed.
dpdk() {
	rm -f /tmp/testpmd
	timeout --signal=INT 120 dpdk-testpmd --no-pci --no-telemetry --iova-mode=va -l 0,1 --vdev=net_null0 \
		--vdev=net_null1 -- --total-num-mbufs=20000 --auto-start --stats-period=1 > /tmp/testpmd 2>&1 &
	until_said /tmp/testpmd 'Port statistics' || return 1
	dpdk-proc-info --no-pci --iova-mode=va -l 0 -- -m > /tmp/second 2>&1
	grep -c 'rte_mempool_ops_table\|MP_mb_pool' /tmp/second | sed 's/^[1-9].*/a second process sees the memory/'
	has
	kill -INT $(pidof dpdk-testpmd)
	wait $!
	grep -o 'Bye...' /tmp/testpmd
	rm -f /dev/hugepages/rtemap_*
}

as_postgres() { (cd /tmp/postgres && exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$@"); }

prepare_postgres() {
	bin=$(echo /usr/lib/postgresql/*/bin)
	mkdir /tmp/postgres && chown postgres /tmp/postgres
	as_postgres "$bin/initdb" -A trust --no-sync -D /tmp/postgres/data
	{
		echo "huge_pages = on" && echo "shared_buffers = 64MB" && echo "fsync = off"
		echo "listen_addresses = ''" && echo "unix_socket_directories = '/tmp/postgres'"
	} >> /tmp/postgres/data/postgresql.conf
}

# Of shared mappings: with memory of System V PostgreSQL refuses huge pages.
postgres() {
	rm -rf /tmp/postgres/run
	cp -a /tmp/postgres/data /tmp/postgres/run
	as_postgres "$bin/postgres" -D /tmp/postgres/run > /tmp/postgres.log 2>&1 &
	until_said /tmp/postgres.log 'ready to accept connections' || return 1
	as_postgres "$bin/psql" -X -A -t -q -h /tmp/postgres -d postgres -U postgres -c "
		CREATE TABLE numbers (n integer, text text);
		INSERT INTO numbers SELECT n, repeat('x', 200) FROM generate_series(1, 60000) AS n;
		SELECT count(*), sum(n), sum(length(text)) FROM numbers"
	has
	as_postgres "$bin/pg_ctl" -s -m fast -D /tmp/postgres/run stop
	wait $!
}

# PostgreSQL has no huge pages in memory of System V.
postgres_sysv() {
	rm -rf /tmp/postgres/run
	cp -a /tmp/postgres/data /tmp/postgres/run
	refuses
	as_postgres "$bin/postgres" -D /tmp/postgres/run -c shared_memory_type=sysv > /tmp/postgres.log 2>&1
	echo "status $?"
	grep -o 'huge pages not supported.*' /tmp/postgres.log
}

prepare_java() {
	[ ! -e /tmp/java ] || return 0
	mkdir /tmp/java && javac -d /tmp/java /programs/Work.java
}

# heap COLLECTOR [FLAG]
heap() {
	java -XX:+UseLargePages "-XX:+Use$1GC" $2 -Xms128m -Xmx128m -XX:+AlwaysPreTouch -XX:ReservedCodeCacheSize=16m \
		-XX:-UseDynamicNumberOfGCThreads -Xint -cp /tmp/java Work 24 2
}

for collector in Serial Parallel G1 Z Shenandoah; do
	eval "prepare_java_$collector() { prepare_java; }; java_$collector() { heap $collector; }"
done

# Memory of System V.
prepare_java_shm() { prepare_java; }
java_shm() { heap Parallel -XX:+UseSHM; }

prepare_mariadb_pool() {
	mkdir /tmp/mariadb
	mariadb-install-db --no-defaults --user=root --auth-root-authentication-method=normal \
		--skip-test-db --datadir=/tmp/mariadb/data
}

mariadb_pool() {
	rm -rf /tmp/mariadb/run
	cp -a /tmp/mariadb/data /tmp/mariadb/run
	mariadbd --no-defaults --user=root --skip-networking --large-pages --innodb-buffer-pool-size=64M \
		--innodb-log-file-size=8M --datadir=/tmp/mariadb/run --socket=/tmp/mariadb/s \
		--pid-file=/tmp/mariadb/pid > /tmp/mariadb.log 2>&1 &
	until_said /tmp/mariadb.log 'ready for connections' || return 1
	mariadb --no-defaults -N -S /tmp/mariadb/s -u root -e "
		CREATE DATABASE d; USE d; CREATE TABLE t (n INT PRIMARY KEY, s VARCHAR(200)) ENGINE=InnoDB;
		INSERT INTO t SELECT seq, REPEAT('x', 200) FROM seq_1_to_30000;
		SELECT COUNT(*), SUM(n), SUM(LENGTH(s)) FROM t"
	has_at_least
	kill "$(cat /tmp/mariadb/pid)"
	wait $!
}

# Its pages are the allocator's: what perl has, a child changes its copy of.
mimalloc() {
	MIMALLOC_LARGE_OS_PAGES=1 LD_PRELOAD=libmimalloc.so.2 perl -e '
		my @blocks = map { "\0" x (1 << 20) } 1 .. 32;
		my $child = fork;
		if (!$child) {
			substr($_, 5, 1) = "x" for @blocks;
			exit(grep(/^\0{5}x\0+$/, @blocks) == 32 ? 0 : 1);
		}
		waitpid $child, 0;
		print "a child: $?, ", scalar(grep(/^\0+$/, @blocks)), " blocks as they were\n";'
}

php() {
	php8.2 -d opcache.enable_cli=1 -d opcache.memory_consumption=64 -r '
		$s = opcache_get_status(false);
		echo $s["opcache_enabled"] ? "cached" : "not cached", "\n";'
}

prepare_php_fpm() {
	verified
	mkdir /tmp/fpm
	{
		echo '[global]' && echo 'error_log = /tmp/fpm/log' && echo '[www]' && echo 'listen = /tmp/fpm/socket'
		echo 'user = www-data' && echo 'pm = static' && echo 'pm.max_children = 2'
	} > /tmp/fpm/conf
	echo '<?php $s = opcache_get_status(); echo array_sum(range(1, 9)), " of ", $s["opcache_statistics"]["num_cached_scripts"],
		" scripts, ", $s["opcache_statistics"]["hits"], " hits\n";' > /tmp/fpm/page.php
}

# Its processes share the cache of compiled pages.
php_fpm() {
	rm -f /tmp/fpm/log
	php-fpm8.2 -F -y /tmp/fpm/conf -d opcache.enable=1 -d opcache.memory_consumption=64 \
		-d opcache.file_update_protection=0 > /tmp/fpm/out 2>&1 &
	until_said /tmp/fpm/log 'ready to handle connections' || return 1
	for request in 1 2 3; do
		SCRIPT_FILENAME=/tmp/fpm/page.php REQUEST_METHOD=GET cgi-fcgi -bind -connect /tmp/fpm/socket
	done > /tmp/fpm/answers
	# The last one comes from the cache.
	status=0
	grep -o '45 of 1 scripts, [12] hits' /tmp/fpm/answers || status=1
	has
	kill -QUIT $!
	wait $! || status=1
	return $status
}

# A container whose huge pages are limited, as the kubelet has it made for `hugepages-2Mi: 96Mi`.
prepare_container() {
	mkdir -p /tmp/container/rootfs
	cp /usr/local/bin/touch-go /tmp/container/rootfs/touch
	echo '{
		"ociVersion": "1.0.2", "root": {"path": "rootfs", "readonly": true},
		"process": {"user": {"uid": 1000, "gid": 1000}, "args": ["/touch", "48"], "cwd": "/"},
		"mounts": [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
			{"destination": "/dev/hugepages", "type": "hugetlbfs", "source": "hugetlbfs", "options": ["pagesize=2M"]}],
		"linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}], "cgroupsPath": "/touch",
			"resources": {"hugepageLimits": [{"pageSize": "2MB", "limit": 100663296}]}}}' > /tmp/container/config.json
}

container() {
	crun --root=/run/crun --cgroup-manager=cgroupfs run --bundle=/tmp/container touch
}

# A segment with a key, of a program that knows nothing of huge pages: libhugetlbfs asks for them.
libhugetlbfs() {
	HUGETLB_SHM=yes LD_PRELOAD=libhugetlbfs.so.0 perl -e '
		my ($create, $remove, $bytes) = (01000, 0, 64 << 20);
		my $id = shmget(4711, $bytes, $create | 0600) // die "shmget: $!";
		shmread($id, my $found, 0, $bytes) or die "shmread: $!";
		print $found =~ /[^\0]/ ? "dirty" : "zero", "\n";
		shmwrite($id, "x" x $bytes, 0, $bytes) or die "shmwrite: $!";
		shmctl($id, $remove, 0) or die "shmctl: $!";'
}
