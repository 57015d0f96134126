# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The daemon through PyPI's varlink: its own parser of interface files, its own client."""

import re
import sys

import varlink

socket, files = sys.argv[1], sys.argv[2:]

with varlink.Client.new_with_address(f"unix:{socket}") as client:
    with client.open("org.varlink.service") as service:
        names = service.GetInfo()["interfaces"]
    assert "io.prezero" in names, names

    # `open` asks for the definition and parses it. Each method and error of the committed files
    # has to be in what that parser found.
    for name in names:
        interface = client.get_interface(name)
        for file in files:
            with open(file) as text:
                lines = text.read()
            if not re.search(rf"^interface {re.escape(name)}$", lines, re.MULTILINE):
                continue
            found = set(interface.members)
            for kind, member in re.findall(r"^(method|type|error) (\w+)", lines, re.MULTILINE):
                assert member in found, f"{name}: {kind} {member} is missing"
            print(f"parsed {name}: {len(found)} members")

    with client.open("io.prezero") as prezero:
        status = prezero.GetStatus()
        assert status["pools"][0]["ready_pages"] == 4, status["pools"]

        # A stream, of which the first reply is enough: it occupies its connection.
        with client.open("io.prezero") as watching:
            level = next(iter(watching.Watch(_more=True)))
        assert level["levels"][0]["ready_pages"] == 4, level

        # This client takes no descriptors: the kernel closes them, and the loan ends.
        loan = prezero.Lend(bytes=2 << 20)
        assert sum(part["ready_bytes"] for part in loan["parts"]) == 2 << 20, loan

        def refused(error, call):
            try:
                call()
            except varlink.VarlinkError as caught:
                assert caught.error() == error, caught
            else:
                raise AssertionError(f"no {error}")

        refused("io.prezero.NotEnough", lambda: prezero.Lend(bytes=1 << 50))
        refused("io.prezero.NoSuchLease", lambda: prezero.Revoke(lease=987654321))
        refused("org.varlink.service.InvalidParameter", lambda: prezero.Lend(bytes="2M"))
        # The same connection still serves.
        assert prezero.GetStatus()["pools"][0]["page_bytes"] == 2 << 20
print("done")
