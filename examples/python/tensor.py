# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A tensor of torch in borrowed memory, without a copy: a cache that the host holds."""

import os

import prezero
import torch

with prezero.lend("64M", socket=os.environ.get("PREZERO_SOCKET")) as loan:
    memory = torch.from_dlpack(loan)  # bytes; view() gives other types
    assert memory.data_ptr() == loan.address, "torch has copied the memory"
    assert not memory.any(), "the memory is not zero"

    weights = memory.view(torch.float16).reshape(4096, -1)
    weights[0] += 0.5
    total = weights.sum(dtype=torch.float32).item()
    print(f"{tuple(weights.shape)} of {weights.dtype} in {loan.nbytes} bytes, sum {total}")

    # What torch writes is in the loan itself.
    assert memoryview(loan)[1] != 0, "the write is not in the loan"

    # The loan refuses to end while a tensor uses its memory.
    del memory, weights
