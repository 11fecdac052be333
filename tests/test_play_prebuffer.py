"""When playing starts, as a function of arrival times alone."""

import math

import pytest

from tts_cli.audio.prebuffer import Prebuffer
from tts_cli.engine import CHUNK_FRAMES

FRAME = 0.08  # s


def play(speed, frames, *, expected=None, limit=10.0, first=0.2, schedule=CHUNK_FRAMES):
    """Drive a `Prebuffer` with an engine of constant speed: (start time, longest gap while playing, arrivals).

    Start is None when the end came first; the gap is the longest time a chunk was late after the start.
    """
    now = first
    buffer = Prebuffer(0.0, expected, limit)
    made = gap = 0.0
    start = None
    done = index = 0
    arrivals = []
    while done < frames:
        n = min(schedule[min(index, len(schedule) - 1)], frames - done)
        now += n * FRAME / speed
        if start is not None:
            late = now - (start + made + gap)
            gap += max(late, 0.0)
        done, index, made = done + n, index + 1, made + n * FRAME
        buffer.arrived(n * FRAME, now)
        arrivals.append(now)
        if start is None and buffer.ready(made):
            start = now
    return start, gap, arrivals


@pytest.mark.parametrize("speed", [2.5, 5, 40])
def test_a_fast_engine_starts_with_the_second_chunk_at_the_latest(speed):
    start, gap, arrivals = play(speed, 100)
    assert start in arrivals[:2]
    assert gap == 0


def test_the_first_chunk_is_enough_when_even_the_time_since_the_request_shows_the_speed():
    start, gap, arrivals = play(40, 100, first=0.01)
    assert start == arrivals[0]
    assert gap == 0


@pytest.mark.parametrize("schedule", [CHUNK_FRAMES, (1,), (4,), (12,)])
@pytest.mark.parametrize("speed", [1.2, 1.5, 2.0, 3.0])
def test_an_engine_little_faster_than_real_time_waits_a_moment_and_has_no_gap(speed, schedule):
    start, gap, _ = play(speed, 200, schedule=schedule)
    assert start < 2.2
    assert gap < 1e-9


@pytest.mark.parametrize("speed", [0.5, 0.7, 0.9])
def test_a_slow_engine_of_known_length_finishes_without_a_gap_and_does_not_wait_for_the_end(speed):
    start, gap, arrivals = play(speed, 100, expected=100 * FRAME, limit=60)
    assert gap < 1e-9
    assert start < arrivals[-1] - 2
    assert start > 0.2 + 8 * (1 / speed - 1)  # no earlier than arithmetic allows


def test_a_slow_engine_of_unknown_length_fills_to_the_limit():
    start, _, arrivals = play(0.5, 500, limit=3.0)
    waiting = sum(1 for time in arrivals if time <= start)
    filled = sum(CHUNK_FRAMES[min(i, 5)] for i in range(waiting)) * FRAME
    assert 3.0 <= filled < 3.0 + 12 * FRAME


def test_the_limit_bounds_a_hopeless_engine():
    start, _, _ = play(0.05, 500, expected=40.0, limit=2.0)
    assert start is not None
    assert play(0.05, 10, expected=0.8, limit=2.0)[0] is None  # the end comes first: draining starts it


def test_a_longer_text_waits_longer():
    waits = [play(0.8, 400, expected=seconds, limit=60)[0] for seconds in (5, 10, 20)]
    assert waits == sorted(set(waits))


def test_expect_counts_from_now():
    buffer = Prebuffer(0.0)
    buffer.arrived(1.0, 2.0)
    buffer.arrived(1.0, 4.0)
    assert not buffer.ready(2.0)  # of unknown length at half real time
    buffer.expect(1.0)
    assert not buffer.ready(1.2)
    assert buffer.ready(2.3)


def test_running_dry_forgets_the_old_speed():
    buffer = Prebuffer(0.0)
    for i in range(10):
        buffer.arrived(1.0, 0.1 * (i + 1))
    assert buffer.speed > 9
    buffer.restart()
    buffer.arrived(1.0, 6.0)
    assert buffer.speed == pytest.approx(0.2)
    assert not buffer.ready(1.0)
    buffer.arrived(1.0, 6.1)
    assert buffer.ready(2.0)


def test_nothing_arrived_is_never_ready():
    assert not Prebuffer(0.0).ready(0.0)
    assert not Prebuffer(0.0, limit=0.0).ready(0.0)


def test_arrivals_without_time_between_them_are_infinitely_fast():
    buffer = Prebuffer(0.0)
    buffer.arrived(0.08, 0.0)
    assert buffer.speed == math.inf
    assert buffer.ready(0.08)
