#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Borrows 64 MiB, for one command and by a name. Needs a daemon with a pool; PREZERO_SOCKET names it.
set -eu

# Wait until the daemon has cleared enough.
prezero wait --ready 64M --timeout 30s

# The command finds the memory by PREZERO_PATH and PREZERO_FD, or by {path} and {fd} in its words.
# The loan ends with the command.
prezero lend 64M -- sh -c '
    cmp -n "$PREZERO_BYTES" "$PREZERO_PATH" /dev/zero
    echo "$PREZERO_BYTES bytes, all zero"'

# Records are JSON for programs.
prezero status --json | grep -q '"lent_ready_bytes"'

# Content that outlives the command, for the same user and owner.
for run in first second; do
    prezero lend 8M --owner example --keep 60s -- sh -c '
        echo "run '$run': kept $PREZERO_KEPT"'
done
