"""Over real sockets, under uvicorn: what a test client cannot show."""

from __future__ import annotations

import asyncio
import http.client
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

MEBIBYTE = 1024 * 1024


@pytest.fixture
def server(app: FastAPI) -> Iterator[str]:
    """The address of a server in a thread of this process."""
    config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < until
        threading.Event().wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    app.state.parts.wakeup.stop()
    server.should_exit = True
    thread.join(15)
    assert not thread.is_alive()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_50_mb_is_413_and_the_sender_hears_it(server: str, chunked: bool) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(50):
            yield b" " * MEBIBYTE

    body: Any = chunks() if chunked else b" " * 50 * MEBIBYTE
    # Listens only after it has sent everything, and lets the server close: as urllib does.
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=30)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    connection.request("POST", "/runs", body, headers, encode_chunked=chunked)
    answer = connection.getresponse()
    assert answer.status == 413
    assert answer.getheader("content-type") == "application/problem+json"
    connection.close()
    assert httpx.get(f"{server}/healthz").status_code == 200


def test_many_workers_wait_at_once_and_each_run_goes_to_one(server: str, app: FastAPI) -> None:
    """More waiting claims than there are threads, and the API still answers."""
    about = {"name": "w", "engines": ["cpu"], "cpus": 1, "memory_bytes": 0}
    waiting = 60
    runs = 5

    async def scene() -> list[dict[str, Any]]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=server, limits=limits, timeout=30) as client:
            worker = (await client.post("/workers", json=about)).json()["id"]
            claims = [
                asyncio.create_task(
                    client.post(f"/workers/{worker}/claim", json={"wait_seconds": 20})
                )
                for _ in range(waiting)
            ]
            until = time.monotonic() + 20
            while app.state.parts.wakeup.waiting < waiting:
                assert time.monotonic() < until
                await asyncio.wait(claims, timeout=0.01)
            assert (await client.get("/healthz")).status_code == 200
            for _ in range(runs):
                assert (await client.post("/runs", json={})).status_code == 201
            done: set[asyncio.Task[httpx.Response]] = set()
            while len([t for t in done if t.result().status_code == 200]) < runs:
                done, _ = await asyncio.wait(claims, timeout=0.05)
            app.state.parts.wakeup.stop()
            answers = await asyncio.gather(*claims)
        assert sorted({answer.status_code for answer in answers}) == [200, 204]
        return [answer.json() for answer in answers if answer.status_code == 200]

    taken = asyncio.run(scene())
    assert len({claim["run_id"] for claim in taken}) == len(taken) == runs


def test_a_debug_client_that_hung_up_frees_its_slot_and_ends_the_conversation(
    server: str, app: FastAPI, child_script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    parts = app.state.parts
    parts.settings.debug_command = child_script(
        f"open({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=30)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/rollouts/debug", '{"task_id": "create_task_1"}', headers)
    until = time.monotonic() + 30
    while not (note.exists() and note.read_text()):
        assert time.monotonic() < until, "the child was not asked"
        threading.Event().wait(0.01)
    connection.close()
    while parts.debug_pool.running:
        assert time.monotonic() < until, "the slot is still taken"
        threading.Event().wait(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_a_worker_that_hung_up_is_given_no_run(server: str, app: FastAPI) -> None:
    about = {"name": "w", "engines": ["cpu"], "cpus": 1, "memory_bytes": 0}
    with httpx.Client(base_url=server, timeout=30) as client:
        worker = client.post("/workers", json=about).json()["id"]
        with pytest.raises(httpx.ReadTimeout):
            client.post(f"/workers/{worker}/claim", json={"wait_seconds": 20}, timeout=0.3)
        assert app.state.parts.wakeup.waiting == 1
        run = client.post("/runs", json={}).json()
        while app.state.parts.wakeup.waiting:
            threading.Event().wait(0.01)
        assert client.get(f"/runs/{run['id']}").json()["status"] == "queued"
