# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A rank that opens, sizes, maps and populates its part of a shared region as vLLM's CPU offload does.

Arguments: the region's path, its blocks, bytes of a block and rank, rank, number of ranks. It says who
it is, the size of its pages and how long it populated. It writes to its part of block 0, and after a
line on standard input it says what the ranks have written there.
"""

import mmap
import os
import sys
import time

POPULATE_WRITE = 23

path = sys.argv[1]
blocks, part, rank, ranks = map(int, sys.argv[2:])
row = part * ranks
size = blocks * row
try:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.ftruncate(fd, size)
    role = "creator"
except FileExistsError:
    fd = os.open(path, os.O_RDWR)
    end = time.monotonic() + 30
    while os.fstat(fd).st_size < size:
        assert time.monotonic() < end, "the file stays too short"
        time.sleep(0.005)
    role = "joiner"
region = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
began = time.perf_counter()
for block in range(blocks):
    region.madvise(POPULATE_WRITE, block * row + rank * part, part)
took = time.perf_counter() - began
with open("/proc/self/smaps") as maps:
    of_region = False
    for line in maps:
        if "-" in line.split(" ")[0]:
            of_region = os.path.realpath(path) in line or path in line
        elif of_region and line.startswith("KernelPageSize:"):
            page = line.split()[1]
            break
region[rank * part] = rank + 1
print(role, page, int(took * 1e6), flush=True)
if sys.stdin.readline():
    print([region[other * part] for other in range(ranks)], flush=True)
