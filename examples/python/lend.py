# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Borrows 64 MiB as a numpy array, without a copy. torch.from_dlpack(loan) makes a tensor."""

import os

import numpy
import prezero

with prezero.lend("64M", socket=os.environ.get("PREZERO_SOCKET")) as loan:
    print(f"{loan.ready_bytes} of {loan.nbytes} bytes were ready")

    array = numpy.from_dlpack(loan)  # bytes; view() gives other types
    assert not array.any(), "the memory is not zero"
    numbers = array.view(numpy.float32)
    numbers[:4] = [1.5, 2.5, 3.5, 4.5]
    print(f"{numbers.size} floats, all zero but {numbers[:4].sum()}")

    # The loan refuses to end while an array uses its memory.
    del array, numbers

# Content that outlives the program: the next loan of the same owner and size finds it.
with prezero.lend("8M", owner="counter", keep=60) as loan:
    runs = memoryview(loan)
    runs[0] += 1
    print(f"run {runs[0]}, {'kept' if loan.kept else 'new'}")
    runs.release()
