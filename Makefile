# SPDX-License-Identifier: Apache-2.0 OR MIT
# Two commands on a fresh Debian 12 with a Rust toolchain: `make demo` and `make test`.
# Each installs what it misses as root, and prints the one command otherwise.

CARGO ?= cargo
SIZE ?=
DEMO_PACKAGES = gcc libc6-dev qemu-system-x86 busybox-static
# What tests/consumers runs on lent memory, besides QEMU.
CONSUMER_PACKAGES = postgresql openjdk-17-jdk-headless mariadb-server libmimalloc2.0 dpdk-dev
TEST_PACKAGES = gcc libc6-dev qemu-system-x86 busybox-static chromium python3

# In CI every skip that this machine could have run is a failure.
ifeq ($(CI),true)
export PREZERO_TEST_NO_SKIP = 1
endif

.PHONY: all deb demo test test-here test-all check build-bin need-demo need-test need-consumers

all: build-bin

need-demo: PACKAGES = $(DEMO_PACKAGES)
need-test: PACKAGES = $(TEST_PACKAGES)
need-consumers: PACKAGES = $(CONSUMER_PACKAGES)
need-demo need-test need-consumers:
	@missing=; for p in $(PACKAGES); do \
	  dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; \
	done; \
	[ -z "$$missing" ] || { \
	  if [ "$$(id -u)" = 0 ]; then \
	    apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $$missing; \
	  else \
	    echo "missing packages: run 'sudo apt-get install --no-install-recommends$$missing'" >&2; exit 1; \
	  fi; }

build-bin: need-demo
	$(CARGO) build --release --package prezero-cli --package prezero-preload

# A real virtual machine gets gigabytes of zeroed huge pages at once.
demo: need-demo build-bin
	target/release/prezero demo $(if $(SIZE),--size $(SIZE)) --guest-kernel "$$($(CARGO) xtask vm kernel)"

# Formatting and lints.
check: need-test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Everything that fits into 20 minutes on 2 cores from a fresh clone.
#
# A build scatters memory, after which a whole GiB is hard to find: the tests' 1 GiB pages are
# reserved before it and given back after it. Where none can be had even so, their tests are
# skipped, which is said and counted.
GIB_PAGES = /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages
test: need-test
	@if [ "$$(id -u)" = 0 ] && [ -w $(GIB_PAGES) ]; then \
	  before=$$(cat $(GIB_PAGES)); trap 'echo '$$before' > $(GIB_PAGES)' EXIT; trap 'exit 130' INT TERM; \
	  echo $$((before + 3)) > $(GIB_PAGES); \
	  if [ "$$(cat $(GIB_PAGES))" -lt $$((before + 3)) ]; then \
	    echo 3 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory; sleep 1; \
	    echo $$((before + 3)) > $(GIB_PAGES); \
	  fi; \
	  if [ "$$(cat $(GIB_PAGES))" -lt $$((before + 3)) ]; then \
	    echo "memory is too scattered for 1 GiB pages: their tests will be skipped" >&2; \
	    echo $$before > $(GIB_PAGES); export PREZERO_TEST_NO_1G=1; \
	  fi; \
	  $(MAKE) test-here; \
	else $(MAKE) test-here; fi

test-here: check
	$(CARGO) build --workspace
	$(CARGO) test --workspace --no-fail-fast
	$(CARGO) xtask vm test --set fast

# The Debian package: target/package/prezero_VERSION.deb
deb: need-demo
	$(CARGO) xtask package build

# The slower matrices: databases, a JVM and others on lent memory, the package on a Debian of its own,
# debug kernel, preemption models, cross builds.
test-all: test need-consumers
	PREZERO_TEST_CONSUMERS=1 $(CARGO) test --package prezero-tests --test consumers -- --test-threads 1
	$(CARGO) xtask package test
	$(CARGO) xtask kernel check
	$(CARGO) xtask vm test --set all
