"""How `tts serve` holds up: concurrent streams, then a mix of good, bad and broken requests.

    python benchmarks/server_load.py -m TALKER.gguf -mm MMPROJ.gguf [--streams 1,4,16,64] [--requests 500] [--frames 60]

Starts `tts serve` with the arguments it does not know itself. For each number of streams: the time to the first audio
(p50, p95), seconds of audio per second over all of them, underruns of a listener who plays at 1x from the first piece
on, and errors (none are in order: the queue takes all of them). Then the mix: whole and streamed answers, clients that
go, bodies that are none, WebSockets that are cancelled; the memory and the open files of the server before and after,
and whether it still speaks.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import httpx
import psutil
from websockets.asyncio.client import connect

TEXT = "The morning was bright and cold, and nobody was awake."
RATE_BYTES = 48_000  # a second of 16-bit samples at 24 kHz
WARM_UP = 100        # requests of the mix before memory is first read


@dataclass
class Stream:
    """How one listener fared."""

    first: float = 0.0
    audio: float = 0.0
    underruns: int = 0
    error: str | None = None


async def listen(client: httpx.AsyncClient, number: int, frames: int) -> Stream:
    stream, began, played_from = Stream(), time.perf_counter(), None
    body = {"input": TEXT, "seed": number, "n_predict": frames, "stream": True, "response_format": "pcm"}
    try:
        async with client.stream("POST", "/tts", json=body) as answer:
            if answer.status_code != 200:
                return Stream(error=(await answer.aread()).decode())
            async for piece in answer.aiter_raw():
                now = time.perf_counter()
                if played_from is None:
                    stream.first, played_from = now - began, now
                elif now > played_from + stream.audio:  # the listener ran dry, and goes on from here
                    stream.underruns += 1
                    played_from = now - stream.audio
                stream.audio += len(piece) / RATE_BYTES
    except httpx.HTTPError as error:
        return Stream(error=repr(error))
    return stream


async def streams(url: str, count: int, frames: int) -> None:
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        began = time.perf_counter()
        done = await asyncio.gather(*(listen(client, number, frames) for number in range(count)))
        wall = time.perf_counter() - began
    good = [stream for stream in done if stream.error is None]
    firsts = sorted(1000 * stream.first for stream in good)
    p95 = firsts[min(len(firsts) - 1, round(0.95 * len(firsts)))] if firsts else float("nan")
    print(f"{count:>4} streams: first audio p50 {statistics.median(firsts or [0]):.0f} ms, p95 {p95:.0f} ms; "
          f"{sum(stream.audio for stream in good) / wall:.2f} s of audio a second; "
          f"{sum(stream.underruns for stream in good)} underruns; {len(done) - len(good)} errors", flush=True)
    for stream in done:
        if stream.error:
            print(f"     {stream.error[:200]}")
            break


async def one_of_the_mix(client: httpx.AsyncClient, url: str, kind: str, number: int) -> str:
    body = {"input": TEXT, "seed": number, "n_predict": 6}
    if kind == "whole":
        return str((await client.post("/tts", json=body)).status_code)
    if kind == "mp3":
        return str((await client.post("/v1/audio/speech", json=body)).status_code)
    if kind == "gone":
        async with client.stream("POST", "/tts", json={**body, "n_predict": 200, "stream": True}) as answer:
            async for _ in answer.aiter_raw():
                break
        return "gone"
    if kind == "bad":
        bad = random.choice([b"{", b"[]", b'{"input": ""}', b'{"input": "a", "speed": 99}', b"\xff", b"x" * 100_000])
        return str((await client.post("/tts", content=bad, headers={"content-type": "application/json"})).status_code)
    async with connect(url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None) as socket:
        await socket.send(json.dumps({"type": "start", "n_predict": 200}))
        await socket.send(json.dumps({"type": "text", "text": TEXT + " "}))
        await socket.send(json.dumps({"type": "flush"}))
        await socket.recv()
        await socket.send(json.dumps({"type": "cancel"}))
        async for message in socket:
            if isinstance(message, str):
                return json.loads(message)["type"]
    return "closed"


async def mix(url: str, server: psutil.Process, requests: int) -> None:
    random.seed(0)
    kinds = random.choices(["whole", "mp3", "gone", "bad", "cancel"], [4, 2, 2, 2, 1], k=WARM_UP + requests)
    gate, outcomes = asyncio.Semaphore(8), {}

    async def run(client, kind, number):
        async with gate:
            outcome = await one_of_the_mix(client, url, kind, number)
            outcomes[kind, outcome] = outcomes.get((kind, outcome), 0) + 1

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await asyncio.gather(*(run(client, kind, n) for n, kind in enumerate(kinds[:WARM_UP])))
        outcomes.clear()
        before = await settled(client, server)
        await asyncio.gather(*(run(client, kind, n) for n, kind in enumerate(kinds[WARM_UP:])))
        after = await settled(client, server)
        alive = (await client.post("/tts", json={"input": TEXT, "n_predict": 2})).status_code
    print(f"{requests} mixed requests: {', '.join(f'{k} {o}: {n}' for (k, o), n in sorted(outcomes.items()))}")
    print(f"memory {before[0]:.0f} -> {after[0]:.0f} MB, open files {before[1]} -> {after[1]}, then an answer of "
          f"{alive}")


async def settled(client: httpx.AsyncClient, server: psutil.Process) -> tuple[float, int]:
    """Memory in MB and open files when nothing runs."""
    while "tts_active_streams 0.0" not in (await client.get("/metrics")).text:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    return server.memory_info().rss / 1e6, server.num_fds() if os.name == "posix" else server.num_handles()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default="1,4,16,64")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--frames", type=int, default=60, help="of 80 ms, at most, in a stream")
    args, serve = parser.parse_known_args()
    process = subprocess.Popen([sys.executable, "-m", "tts_cli", "serve", "--port", "0", *serve],
                               stderr=subprocess.PIPE, text=True)
    said = ""
    while not (found := re.search(r"serving on (\S+)\n", said)):
        line = process.stderr.readline()
        if not line:
            sys.exit(f"the server did not start: {said}")
        said += line
    reader = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    try:
        url = found[1]
        while httpx.get(url + "/health").json()["status"] == "loading":
            time.sleep(0.1)
        for count in map(int, args.streams.split(",")):
            asyncio.run(streams(url, count, args.frames))
        asyncio.run(mix(url, psutil.Process(process.pid), args.requests))
    finally:
        process.send_signal(signal.SIGTERM)
        print(f"exit code {process.wait(60)}")
        reader.wait(10)


if __name__ == "__main__":
    main()
