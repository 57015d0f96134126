# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Mooncake's store with a segment of huge pages: puts objects, gets them, and says how long setup took.

Arguments: the master's address, and that of the metadata server's HTTP, and the segment's MiB.
"""

import sys
import time

from mooncake.store import MooncakeDistributedStore

master, metadata, segment = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20
store = MooncakeDistributedStore()
began = time.monotonic()
code = store.setup("127.0.0.1", metadata, segment, 32 << 20, "tcp", "", master)
took = time.monotonic() - began
assert code == 0, f"setup: {code}"
for number in range(8):
    value = bytes([number + 1]) * (1 << 20)
    assert store.put(f"key-{number}", value) == 0
    assert store.get(f"key-{number}") == value
print(f"setup {took:.3f} s")
sys.stdout.flush()
store.close()
