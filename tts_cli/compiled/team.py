"""Threads that run one compiled function together and meet at barriers inside it.

A frame is some five hundred products, each a few dozen microseconds long: waking threads for each would cost more than
it gives. So the threads are woken once per pass, and between products they meet spinning.
"""

import queue
import sys
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# Spins before a thread lets others run: long where every thread has a core, short enough where one was taken away.
PATIENCE = 20_000

_INT = ir.IntType(64)
_give_way = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


@intrinsic
def _add(typing_context, address, value):
    """Atomic: add, return what was there."""
    def emit(context, b, signature, arguments):
        return b.atomic_rmw("add", b.inttoptr(arguments[0], _INT.as_pointer()), arguments[1], "seq_cst")
    return types.int64(types.intp, types.int64), emit


@intrinsic
def _load(typing_context, address):
    def emit(context, b, signature, arguments):
        return b.load_atomic(b.inttoptr(arguments[0], _INT.as_pointer()), "seq_cst", 8)
    return types.int64(types.intp), emit


@intrinsic
def _store(typing_context, address, value):
    def emit(context, b, signature, arguments):
        b.store_atomic(arguments[1], b.inttoptr(arguments[0], _INT.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()
    return types.void(types.intp, types.int64), emit


@njit
def meet(threads: int, barrier: int) -> None:
    """Return when all `threads` have come here. `barrier`: address of two cache lines of zeros, reusable at once."""
    if threads == 1:
        return
    turn = barrier + 64
    now = _load(turn)
    if _add(barrier, 1) == threads - 1:
        _store(barrier, 0)
        _store(turn, now + 1)
        return
    spins = 0
    while _load(turn) == now:
        spins += 1
        if spins > PATIENCE:
            _give_way()


@lru_cache(maxsize=4)
def team_of(threads: int) -> "Team":
    """A team that all who ask for so many threads share."""
    return Team(threads)


class Team:
    """`threads` workers; `run` gives all of them one function and waits.

    With one thread the caller works itself. Otherwise it only waits, so that an interrupt (Ctrl-C) can end its waiting
    and never leaves the workers a member short. One run at a time; callers of several threads take turns.
    """

    def __init__(self, threads: int):
        self.threads = threads
        self._barrier = np.zeros(24, np.int64)  # two lines of 64 bytes, wherever they begin
        self._address = -(-self._barrier.ctypes.data // 64) * 64
        self._turn = threading.Lock()
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        self._pending = 0
        self._jobs = [queue.SimpleQueue() for _ in range(threads if threads > 1 else 0)]
        for number, jobs in enumerate(self._jobs):
            threading.Thread(target=_work, args=(number, jobs, self._done), name=f"tts team {number}",
                             daemon=True).start()
        weakref.finalize(self, _dismiss, self._jobs)

    def run(self, function: Callable, *arguments) -> None:
        """Call `function(thread, threads, barrier, *arguments)`, which raises nothing, once for each thread."""
        with self._turn:
            if not self._jobs:
                function(0, 1, self._address, *arguments)
                return
            self._wait()  # for a run whose caller was interrupted
            for jobs in self._jobs:
                self._pending += 1
                jobs.put((function, self.threads, self._address, arguments))
            self._wait()

    def _wait(self) -> None:
        while self._pending:
            self._done.get()
            self._pending -= 1


def _work(number: int, jobs: queue.SimpleQueue, done: queue.SimpleQueue) -> None:
    while (job := jobs.get()) is not None:
        function, threads, barrier, arguments = job
        try:
            function(number, threads, barrier, *arguments)
        finally:
            done.put(None)
        del job, function, arguments  # an idle thread holds no model


def _dismiss(jobs: list[queue.SimpleQueue]) -> None:
    for one in jobs:
        one.put(None)
