# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# One function for each program. It prints what has to be the same each time; prepare_NAME is what
# comes before, and is not counted.

# How many pages it has, before a server gives them back.
has() { pool used > /tmp/used; }

# The same of one that maps pages and gives them back meanwhile, as many as its threads come to.
has_at_least() { pool used > /tmp/least; }

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

# Files with names, which a second process maps; they stay until somebody removes them.
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

prepare_java() {
	[ ! -e /tmp/java ] || return 0
	mkdir /tmp/java && javac -d /tmp/java /programs/Work.java
}

# heap COLLECTOR [FLAG]
heap() {
	java -XX:+UseLargePages "-XX:+Use$1GC" $2 -Xms128m -Xmx128m -XX:+AlwaysPreTouch -XX:ReservedCodeCacheSize=16m \
		-XX:-UseDynamicNumberOfGCThreads -Xint -cp /tmp/java Work
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
