"""What Prometheus may ask: how many requests, how long they wait, how fast speech is made, how it ends."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_FIRST = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30)
_SPEEDS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)


class Metrics:
    """The numbers of one server; an `Observer` of its worker."""

    def __init__(self):
        self.registry = CollectorRegistry()
        more = {"registry": self.registry}
        self._requests = Counter("tts_requests", "Requests answered", ["route", "code"], **more)
        self._wait = Histogram("tts_queue_wait_seconds", "Time in the queue", buckets=_WAITS, **more)
        self._first = Histogram("tts_first_audio_seconds", "From request to first sound", buckets=_FIRST, **more)
        self._audio = Counter("tts_audio_seconds", "Speech made", **more)
        self._speed = Histogram("tts_times_real_time", "Seconds of speech made per second, by request",
                                buckets=_SPEEDS, **more)
        self._finished = Counter("tts_finished", "Requests by how their speech ended", ["reason"], **more)
        for reason in ("eos", "limit", "cancelled", "error"):
            self._finished.labels(reason)
        self._waiting = Gauge("tts_queue_length", "Requests that wait", **more)
        self._active = Gauge("tts_active_streams", "Requests that are being spoken", **more)

    def watch(self, worker) -> None:
        self._waiting.set_function(lambda: worker.waiting)
        self._active.set_function(lambda: worker.active)

    def answered(self, route: str, code: int) -> None:
        self._requests.labels(route, str(code)).inc()

    def began(self, waited: float) -> None:
        self._wait.observe(waited)

    def first_audio(self, seconds: float) -> None:
        self._first.observe(seconds)

    def ended(self, reason: str, audio_seconds: float, wall_seconds: float) -> None:
        self._finished.labels(reason).inc()
        self._audio.inc(audio_seconds)
        if audio_seconds and wall_seconds:
            self._speed.observe(audio_seconds / wall_seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
