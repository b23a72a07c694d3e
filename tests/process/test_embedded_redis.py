"""The embedded server as processes see it: one owner per folder, nothing acknowledged is lost, no orphan stays."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import redis_support
from dualpath.model.errors import Rejected
from dualpath.scheduler.stores import embedded
from dualpath.scheduler.stores.embedded import EmbeddedRedis, EmbeddedTiming
from dualpath.scheduler.stores.redis import RedisStore

# A scheduler in small: starts the server, writes, says what is acknowledged, until it is killed.
WRITER = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from dualpath.model.ids import TurnId
    from dualpath.scheduler.lifecycle.changes import ChangeSet, PutTurn
    from dualpath.scheduler.stores.embedded import EmbeddedRedis
    from dualpath.scheduler.stores.redis import RedisStore

    async def main() -> None:
        server = EmbeddedRedis(Path(sys.argv[1]))
        store = await RedisStore.open(await server.start(), cell="c0")
        print(server.pid, flush=True)
        tenure = await store.acquire("writer", 60.0)
        number = 0
        while True:
            await store.apply([ChangeSet((PutTurn(TurnId(f"t{number}"), b"record"),))], tenure)
            print(number, flush=True)
            number += 1

    asyncio.run(main())
""")


async def test_kill_9_of_the_scheduler_loses_no_acknowledged_write_and_leaves_no_server(tmp_path: Path) -> None:
    writer = start_writer(tmp_path)
    server_pid = int(read_line(writer))
    while (acknowledged := int(read_line(writer))) < 100:
        pass

    writer.kill()
    rest, _ = writer.communicate()
    acknowledged = max([acknowledged, *map(int, rest.split())])

    async with EmbeddedRedis(tmp_path) as server:
        assert not is_alive(server_pid)
        async with redis_support.opened(server.url, cell="c0") as store:
            tenure = await store.acquire("writer", 60.0)  # the same owner need not wait for its lease
            stored = await store.load(tenure)
    assert set(stored.turns) >= {f"t{number}" for number in range(acknowledged + 1)}
    assert stored.changes_applied >= acknowledged + 1


async def test_kill_9_of_the_server_loses_no_acknowledged_write(tmp_path: Path) -> None:
    writer = start_writer(tmp_path)
    server_pid = int(read_line(writer))
    while int(read_line(writer)) < 50:
        pass

    os.kill(server_pid, signal.SIGKILL)
    rest, _ = writer.communicate()  # the writer fails with its store

    acknowledged = max([50, *map(int, rest.split())])
    async with EmbeddedRedis(tmp_path) as server, redis_support.opened(server.url, cell="c0") as store:
        stored = await store.load(await store.acquire("writer", 60.0))
    assert set(stored.turns) >= {f"t{number}" for number in range(acknowledged + 1)}


async def test_a_folder_in_use_is_rejected_naming_the_user(tmp_path: Path) -> None:
    told: list[str] = []
    async with EmbeddedRedis(tmp_path) as first:
        timing = EmbeddedTiming(lock_wait_s=0.1, progress_every_s=0.02)
        second = EmbeddedRedis(tmp_path, timing=timing, progress=told.append)

        with pytest.raises(Rejected, match=f"in use by the scheduler with pid {os.getpid()}"):
            await second.start()

        assert first.pid is not None and is_alive(first.pid)
        assert told and "waiting for the scheduler" in told[0]
        await (await RedisStore.open(first.url, cell="c0")).close()


async def test_a_start_waits_for_a_server_that_is_still_ending(tmp_path: Path) -> None:
    first = EmbeddedRedis(tmp_path)
    await first.start()

    second = EmbeddedRedis(tmp_path)
    start = asyncio.create_task(second.start())
    await asyncio.sleep(0.05)  # it can only be too short to show a start that does not wait
    assert not start.done()
    await first.stop()

    await start
    await second.stop()


async def test_a_launcher_whose_parent_is_gone_starts_nothing(tmp_path: Path) -> None:
    no_parent_of_ours = "1" if os.getpid() != 1 else "2"
    command = [sys.executable, "-I", "-S", str(embedded.LAUNCHER), no_parent_of_ours, "/bin/true"]

    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)

    assert found.returncode == 1
    assert "is gone" in found.stderr


async def test_a_folder_with_a_long_name_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    server = EmbeddedRedis(folder)

    url = await server.start()
    place = Path(url.removeprefix("unix://")).parent

    assert place != folder
    assert place.stat().st_mode & 0o777 == 0o700
    await (await RedisStore.open(url, cell="c0")).close()
    await server.stop()
    assert not place.exists()


async def test_a_place_for_the_socket_that_others_made_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / ("deep" * 30)
    server = EmbeddedRedis(folder)
    await server.start()
    place = Path(server.url.removeprefix("unix://")).parent
    await server.stop()
    place.mkdir(mode=0o755)

    with pytest.raises(Rejected, match="not a folder of ours"):
        await server.start()


async def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path, options=("--no-such-option", "1"))

    with pytest.raises(Rejected, match="no-such-option"):
        await server.start()

    async with EmbeddedRedis(tmp_path):
        pass  # the folder is free again


async def test_stop_is_harmless_twice_and_without_start(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    await server.stop()
    await server.start()

    await server.stop()
    await server.stop()

    assert not (tmp_path / "redis.sock").exists()


def test_an_old_server_on_the_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=5.0.14 sha=0'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded, "_packaged_server", lambda: None)

    with pytest.raises(Rejected, match=r"redis-server is 5\.0.*--redis-url"):
        embedded.find_server()


# ---- helpers


def start_writer(folder: Path) -> "subprocess.Popen[str]":
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *sys.path]))
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def is_alive(pid: int) -> bool:
    """A dead process that nobody has waited for yet counts as dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
