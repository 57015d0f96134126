# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The wheel against a daemon that has 32 MiB ready: PREZERO_SOCKET says where it listens."""

import errno
import gc
import importlib
import multiprocessing
import os
import signal
import threading
import time
import unittest
from typing import Any

import numpy
import prezero

MIB = 1 << 20


def lent_pages() -> int:
    return sum(pool["lent_pages"] + pool["draining_pages"] for pool in prezero.status()["pools"])


class Lend(unittest.TestCase):
    def tearDown(self) -> None:
        gc.collect()
        deadline = time.monotonic() + 20
        while lent_pages() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(lent_pages(), 0)

    def test_a_loan_is_a_writable_buffer_of_zeros(self) -> None:
        with prezero.lend("16M", page_size="2M") as loan:
            self.assertEqual((loan.nbytes, len(loan), loan.page_size), (16 * MIB, 16 * MIB, 2 * MIB))
            self.assertEqual(loan.ready_bytes, 16 * MIB)
            self.assertFalse(loan.kept)
            self.assertEqual(loan.address % (2 * MIB), 0)
            with memoryview(loan) as view:
                self.assertEqual((view.nbytes, view.format, view.readonly), (16 * MIB, "B", False))
                self.assertEqual(bytes(view), bytes(16 * MIB))
                view[5 * MIB] = 7
            self.assertEqual(numpy.frombuffer(memoryview(loan), numpy.uint8)[5 * MIB], 7)
            self.assertEqual(lent_pages(), 8)
        self.assertTrue(loan.closed)
        loan.close()
        with self.assertRaises(ValueError):
            memoryview(loan)
        with self.assertRaises(ValueError):
            loan.address

    def test_a_loan_is_a_source_of_pinned_memory(self) -> None:
        try:
            torch: Any = importlib.import_module("torch")
        except ImportError:
            self.skipTest("torch is not installed")
        if not torch.cuda.is_available():
            self.skipTest("there is no GPU")
        with prezero.lend("16M", page_size="2M") as loan:
            memory = torch.from_dlpack(loan)
            memory[5 * MIB] = 7
            cudart = torch.cuda.cudart()
            self.assertEqual(int(cudart.cudaHostRegister(loan.address, loan.nbytes, 0)), 0)
            self.assertTrue(memory.is_pinned())
            there = memory.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            self.assertEqual((int(there[5 * MIB]), int(there.to(torch.int64).sum())), (7, 7))
            self.assertEqual(int(cudart.cudaHostUnregister(loan.address)), 0)
            del memory

    def test_leftovers_are_unlent(self) -> None:
        for _ in range(3):
            with prezero.lend(32 * MIB) as loan:
                self.assertEqual(numpy.count_nonzero(numpy.frombuffer(memoryview(loan), numpy.uint64)), 0)
                numpy.frombuffer(memoryview(loan), numpy.uint8)[:] = 0xA5
            self.tearDown()

    def test_it_is_not_closed_below_a_view_or_a_tensor(self) -> None:
        loan = prezero.lend("2M")
        view = memoryview(loan)
        with self.assertRaises(BufferError):
            loan.close()
        view.release()
        for version in [None, (1, 0)]:
            capsule = loan.__dlpack__(max_version=version)
            with self.assertRaises(BufferError):
                loan.close()
            del capsule
        tensor = numpy.from_dlpack(loan)
        with self.assertRaises(BufferError):
            loan.close()
        tensor[-1] = 3
        self.assertEqual(memoryview(loan)[-1], 3)
        self.assertFalse(loan.closed)
        del tensor
        loan.close()
        self.assertTrue(loan.closed)

    def test_a_view_and_a_tensor_live_without_the_loans_name(self) -> None:
        view = memoryview(prezero.lend("2M"))
        tensor = numpy.from_dlpack(prezero.lend("2M"))
        gc.collect()
        view[0] = tensor[0] = 9
        self.assertEqual((lent_pages(), view[0], tensor[0]), (2, 9, 9))
        view.release()

    def test_error_below_a_view_is_not_hidden_by_another(self) -> None:
        with self.assertRaises(ZeroDivisionError) as raised:
            with prezero.lend("2M") as loan:
                view = memoryview(loan)
                view[0] = 1 // (view[1] * 0)
        self.assertIsNone(raised.exception.__context__)
        view.release()
        del loan, view

    def test_dlpack_refuses_what_it_cannot_be(self) -> None:
        with prezero.lend("2M") as loan:
            self.assertEqual(loan.__dlpack_device__(), (1, 0))
            refused: list[dict[str, Any]] = [{"copy": True}, {"dl_device": (2, 0)}, {"stream": 1}]
            for asked in refused:
                with self.assertRaises(BufferError, msg=str(asked)):
                    loan.__dlpack__(**asked)

    def test_an_owner_finds_its_content_again(self) -> None:
        with prezero.lend("4M", owner="python", keep=60) as loan:
            self.assertFalse(loan.kept)
            memoryview(loan)[:5] = b"hello"
        deadline = time.monotonic() + 20
        while True:
            loan = prezero.lend("4M", owner="python", keep=0)
            if loan.kept or time.monotonic() > deadline:
                break
            loan.close()
        self.assertTrue(loan.kept)
        self.assertEqual(bytes(memoryview(loan)[:5]), b"hello")
        loan.close()

    def test_a_fork_shares_it_and_a_child_that_dies_takes_nothing_along(self) -> None:
        with prezero.lend("2M") as loan:
            child = multiprocessing.get_context("fork").Process(target=write_and_die, args=(loan,))
            child.start()
            child.join()
            self.assertEqual((child.exitcode, memoryview(loan)[1]), (-9, 42))

    def test_other_threads_run_while_it_waits(self) -> None:
        everything = prezero.lend("32M")
        ticks = []
        stop = threading.Event()

        def tick() -> None:
            while not stop.wait(0.005):
                ticks.append(time.monotonic())

        ticker = threading.Thread(target=tick)
        ticker.start()
        began = time.monotonic()
        # Nothing is left: it waits in vain, and the kernel has no page for the hole either.
        with self.assertRaises(prezero.Error):
            prezero.lend("32M", wait=0.3)
        stop.set()
        ticker.join()
        self.assertGreaterEqual(time.monotonic() - began, 0.3)
        self.assertGreater(len(ticks), 5)
        everything.close()

    def test_ctrl_c_ends_a_wait(self) -> None:
        everything = prezero.lend("32M")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            prezero.lend("32M", wait=30)
        self.assertLess(time.monotonic() - began, 3)
        everything.close()

    def test_it_waits_until_all_is_ready(self) -> None:
        soiled = prezero.lend("32M")
        threading.Timer(0.2, soiled.close).start()
        with prezero.lend("32M", wait=60) as loan:
            self.assertEqual(loan.ready_bytes, 32 * MIB)


class Errors(unittest.TestCase):
    def test_no_daemon_is_an_error_of_its_own(self) -> None:
        with self.assertRaises(prezero.NoDaemon) as raised:
            prezero.lend("2M", socket="/nonexistent/socket")
        self.assertEqual(raised.exception.errno, errno.ENOENT)
        self.assertIsInstance(raised.exception, OSError)
        self.assertIn("/nonexistent/socket", str(raised.exception))
        with self.assertRaises(prezero.NoDaemon):
            prezero.status(socket="/nonexistent/socket")

    def test_what_the_daemon_refuses_has_its_reason(self) -> None:
        with self.assertRaises(prezero.Refused) as raised:
            prezero.lend("2M", node=7)
        self.assertEqual(raised.exception.errno, errno.ENODEV)
        self.assertIn("7", str(raised.exception))

    def test_bad_values_never_reach_the_daemon(self) -> None:
        wrong: list[dict[str, Any]] = [
            {"size": "two"},
            {"size": "2M", "page_size": 12345},
            {"size": "2M", "keep": -1.0},
            *({"size": "2M", "wait": wait} for wait in [float("nan"), float("inf"), -1.0, 1e19]),
            {"size": "2M", "owner": "a b/c"},
        ]
        for arguments in wrong:
            with self.assertRaises(ValueError, msg=str(arguments)):
                prezero.lend(**arguments, socket="/nonexistent/socket")
        with self.assertRaises((TypeError, OverflowError)):
            prezero.lend(-1)


def write_and_die(loan: prezero.Loan) -> None:
    memoryview(loan)[1] = 42
    os.kill(os.getpid(), 9)


if __name__ == "__main__":
    unittest.main()
