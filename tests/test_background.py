"""The worker thread: results and exceptions cross over, and the one who waits can always be interrupted."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tts_cli
from tts_cli.background import AHEAD_ITEMS, Abandoned, Worker, any_busy
from tts_cli.engine import CancelToken

ROOT = Path(tts_cli.__file__).parent.parent


@pytest.fixture
def worker():
    with Worker() as made:
        yield made


def test_jobs_run_in_turn_on_one_other_thread(worker):
    threads = [worker.call(threading.current_thread) for _ in range(3)]
    assert len(set(threads)) == 1 and threads[0] is not threading.current_thread()


def test_results_and_exceptions_cross_over(worker):
    assert worker.call(divmod, 7, 2) == (3, 1)
    for error in (ValueError("x"), TimeoutError("y"), KeyboardInterrupt()):
        def fail(error=error):
            raise error
        with pytest.raises(type(error)):
            worker.call(fail)
    assert worker.call(len, "after") == 5


def test_nobody_waits_for_a_worker_that_was_abandoned(worker):
    go_on = threading.Event()

    def slow():
        yield go_on.wait()
    items = worker.ahead(slow(), CancelToken())
    worker.abandon()
    for wait in (lambda: worker.call(len, "after"), lambda: next(items)):
        with pytest.raises(Abandoned):
            wait()
    go_on.set()


def test_items_arrive_in_order_and_then_the_exception(worker):
    def items():
        yield from range(50)
        raise ValueError("the end")
    seen = []
    with pytest.raises(ValueError, match="the end"):
        for item in worker.ahead(items(), CancelToken()):
            seen.append(item)
    assert seen == list(range(50))


def test_runs_in_turns_alternate_and_let_other_jobs_in(worker):
    begin, made = threading.Event(), []

    def items(name, count):
        for number in range(count):
            made.append(name)
            yield number
    blocked = worker.submit(begin.wait)
    runs = [worker.ahead(items(name, count), CancelToken(), in_turns=True) for name, count in (("a", 4), ("b", 2))]
    job = worker.submit(made.append, "job")
    begin.set()
    assert [list(run) for run in runs] == [[0, 1, 2, 3], [0, 1]]
    job.result()
    assert blocked.result() and made == ["a", "b", "job", "a", "b", "a", "a"]


def test_it_runs_only_a_few_items_ahead(worker):
    made = []
    ahead = worker.ahead((made.append(n) or n for n in range(1000)), CancelToken())
    next(ahead)
    while len(made) < AHEAD_ITEMS:
        time.sleep(0.001)
    time.sleep(0.02)
    assert len(made) <= AHEAD_ITEMS + 2
    ahead.close()


def test_a_finished_run_is_not_cancelled_and_an_abandoned_one_is(worker):
    cancel = CancelToken()
    with worker.ahead(iter("ab"), cancel) as ahead:
        assert list(ahead) == ["a", "b"] and list(ahead) == []
    assert not cancel.cancelled

    def until_cancelled():
        while not cancel.cancelled:
            yield 0
    with worker.ahead(until_cancelled(), cancel) as ahead:
        next(ahead)
    assert cancel.cancelled
    assert worker.call(str, 1) == "1"  # the worker is free again


def test_closing_does_not_wait_for_a_long_call():
    go = threading.Event()
    worker = Worker()
    future = worker.submit(go.wait)
    assert any_busy() and worker.busy
    worker.close()
    go.set()
    assert future.result(10) is True


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send Ctrl-C to one process")
def test_ctrl_c_is_answered_while_a_call_does_not_return():
    program = ("import time\nfrom tts_cli.background import Worker\nfrom tts_cli.cli.main import leave\n"
               "worker = Worker()\nprint('go', flush=True)\n"
               "try:\n    worker.call(time.sleep, 60)\nexcept KeyboardInterrupt:\n    leave(130)\n")
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    assert process.stdout.readline().strip() == b"go"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == (b"", b"") and process.returncode == 130
