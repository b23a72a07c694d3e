"""What every block store does alike, and what the directory store does about disks that are full, old or another's."""

import errno
import multiprocessing
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dualpath.model.errors import BlockSizeError, Broken, Refused, Rejected
from dualpath.model.ids import ROOT_KEY, BlockKey, Namespace
from dualpath.model.keys import block_key, chain_keys, namespace_for
from dualpath.model.layout import BlockLayout
from dualpath.storage_shim.backends.directory import DirectoryBackend
from dualpath.storage_shim.backends.memory import MemoryBackend
from dualpath.storage_shim.outcomes import BlockHeader, BlockHit, BlockMiss, MissReason
from dualpath.storage_shim.ports import StorageBackend
from dualpath.storage_shim.wrappers.faulty import Fault, FaultyBackend
from dualpath.storage_shim.wrappers.metered import MeteredBackend
from dualpath.storage_shim.wrappers.paced import LinkPacer, PacedBackend

LAYOUT = BlockLayout(num_layers=2, block_tokens=4, bytes_per_token_layer=6)
SPACE = namespace_for("tiny", "r1", "float32", LAYOUT)
Build = Callable[[Path], StorageBackend]

BUILDS: dict[str, Build] = {
    "memory": lambda _: MemoryBackend(SPACE, LAYOUT),
    "directory": lambda root: DirectoryBackend(root, SPACE, LAYOUT),
    "paced": lambda _: PacedBackend(MemoryBackend(SPACE, LAYOUT), reads=LinkPacer(None), writes=LinkPacer(None)),
    "metered": lambda _: MeteredBackend(MemoryBackend(SPACE, LAYOUT)),
    "faulty": lambda _: FaultyBackend(MemoryBackend(SPACE, LAYOUT)),
}


@pytest.fixture(params=sorted(BUILDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> StorageBackend:
    return BUILDS[request.param](tmp_path)


def _header(tokens: tuple[int, ...] = (1, 2, 3, 4), parent: BlockKey = ROOT_KEY) -> BlockHeader:
    return BlockHeader(block_key(SPACE, parent, tokens), parent, tokens)


def _payload(seed: int = 0) -> memoryview:
    return memoryview(bytearray(random.Random(seed).randbytes(LAYOUT.full_block_bytes)))


def _room() -> memoryview:
    return memoryview(bytearray(LAYOUT.full_block_bytes))


def test_a_written_block_comes_back_with_its_header(backend: StorageBackend) -> None:
    header, room = _header(), _room()
    backend.write(header, _payload())

    assert backend.contains(header.key)
    assert backend.read(header.key, room) == BlockHit(header)
    assert room == _payload()


def test_an_absent_block_is_a_miss(backend: StorageBackend) -> None:
    assert backend.read(_header().key, _room()) == BlockMiss(MissReason.ABSENT)
    assert not backend.contains(_header().key)


def test_a_block_is_written_once(backend: StorageBackend) -> None:
    room = _room()
    backend.write(_header(), _payload(1))
    backend.write(_header(), _payload(2))

    backend.read(_header().key, room)

    assert room == _payload(1)


def test_memory_of_another_size_is_an_error_with_both_sizes(backend: StorageBackend) -> None:
    with pytest.raises(BlockSizeError, match="block has 47 bytes, layout wants 48"):
        backend.write(_header(), memoryview(bytes(47)))


def _file(root: Path) -> Path:
    [path] = root.rglob("*.kv")
    return path


@pytest.mark.parametrize("seed", range(60))
def test_no_flipped_bit_is_ever_served(tmp_path: Path, seed: int) -> None:
    backend = DirectoryBackend(tmp_path, SPACE, LAYOUT, durable=False)
    chance = random.Random(seed)
    for number in range(10):
        header = _header((number, 2, 3, seed))
        backend.write(header, _payload(number))
        path = next(p for p in tmp_path.rglob("*.kv") if p.stem == header.key.hex())
        damaged = bytearray(path.read_bytes())
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)

        assert backend.read(header.key, _room()) == BlockMiss(MissReason.CORRUPT, "checksum differs")


def test_a_bad_block_is_moved_aside_and_can_be_written_again(tmp_path: Path) -> None:
    backend = DirectoryBackend(tmp_path, SPACE, LAYOUT)
    backend.write(_header(), _payload())
    _file(tmp_path).write_bytes(b"short")

    assert isinstance(backend.read(_header().key, _room()), BlockMiss)
    backend.write(_header(), _payload())

    assert backend.read(_header().key, _room()) == BlockHit(_header())


def test_right_bytes_under_a_wrong_name_are_a_miss(tmp_path: Path) -> None:
    backend = DirectoryBackend(tmp_path, SPACE, LAYOUT)
    one, two = _header((1, 2, 3, 4)), _header((5, 6, 7, 8))
    backend.write(one, _payload(1))
    backend.write(two, _payload(2))
    paths = {path.stem: path for path in tmp_path.rglob("*.kv")}
    paths[one.key.hex()].write_bytes(paths[two.key.hex()].read_bytes())

    outcome = backend.read(one.key, _room())

    assert isinstance(outcome, BlockMiss)
    assert outcome.reason is MissReason.WRONG_KEY


def test_a_directory_of_another_layout_is_refused_with_both_layouts(tmp_path: Path) -> None:
    DirectoryBackend(tmp_path, SPACE, LAYOUT)
    other = BlockLayout(2, 4, 8)

    with pytest.raises(Rejected, match=r"2 layers x 4 tokens x 6 B, this engine has 2 layers x 4 tokens x 8 B"):
        DirectoryBackend(tmp_path, namespace_for("tiny", "r1", "float32", other), other)


@pytest.mark.parametrize("field", ["model_name", "model_revision", "dtype", "tenant"])
def test_changing_one_field_of_the_namespace_hides_every_block(tmp_path: Path, field: str) -> None:
    fields = {"model_name": "tiny", "model_revision": "r1", "dtype": "float32", "tenant": "default"}
    DirectoryBackend(tmp_path, SPACE, LAYOUT).write(_header(), _payload())
    other = namespace_for(**(fields | {field: "other"}), layout=LAYOUT)

    assert DirectoryBackend(tmp_path, other, LAYOUT).read(_header().key, _room()) == BlockMiss(MissReason.ABSENT)
    assert block_key(other, ROOT_KEY, (1, 2, 3, 4)) != _header().key


def test_a_full_disk_refuses_the_block_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = DirectoryBackend(tmp_path, SPACE, LAYOUT)

    def no_room(handle: int, views: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", no_room)
    with pytest.raises(Refused, match="no room for a block") as caught:
        backend.write(_header(), _payload())

    assert caught.value.reason == "STORAGE_FULL"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["manifest.json"]


def test_a_failed_fsync_is_an_error_and_the_block_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = DirectoryBackend(tmp_path, SPACE, LAYOUT)

    def broken(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(Broken, match="Input/output error"):
        backend.write(_header(), _payload())

    assert not backend.contains(_header().key)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda handle, views: real(handle, [views[0][:7]]))
    backend = DirectoryBackend(tmp_path, SPACE, LAYOUT)

    backend.write(_header(), _payload())

    assert backend.read(_header().key, _room()) == BlockHit(_header())


def _put(root: str) -> None:
    backend = DirectoryBackend(Path(root), SPACE, LAYOUT)
    for number in range(20):
        backend.write(_header((number, 0, 0, 0)), _payload(number))


def test_eight_processes_that_put_the_same_blocks_leave_good_blocks_and_nothing_else(tmp_path: Path) -> None:
    processes = [multiprocessing.get_context("fork").Process(target=_put, args=(str(tmp_path),)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0] * 8
    backend = DirectoryBackend(tmp_path, SPACE, LAYOUT)
    for number in range(20):
        assert isinstance(backend.read(_header((number, 0, 0, 0)).key, _room()), BlockHit)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("key", [b"", b"../../etc/passwd", b"x" * 31, b"x" * 33])
def test_a_name_of_another_length_never_reaches_the_disk(tmp_path: Path, key: bytes) -> None:
    with pytest.raises(Rejected, match="wanted 32"):
        DirectoryBackend(tmp_path, SPACE, LAYOUT).read(BlockKey(key), _room())


@pytest.mark.parametrize("field", ["", "../up", "a/b", "x" * 200])
def test_a_namespace_cannot_name_a_path(field: str) -> None:
    with pytest.raises(Rejected, match="tenant is"):
        namespace_for("tiny", "r1", "float32", LAYOUT, tenant=field)


def test_keys_chain_over_whole_blocks_only() -> None:
    keys = chain_keys(SPACE, range(11), block_tokens=4)

    assert keys[0] == block_key(SPACE, ROOT_KEY, range(4))
    assert keys[1] == block_key(SPACE, keys[0], range(4, 8))
    assert len(keys) == 2


def test_fields_of_a_key_cannot_be_shifted_into_each_other() -> None:
    assert block_key(Namespace("ab"), ROOT_KEY, (1,)) != block_key(Namespace("a"), ROOT_KEY, (1,))
    assert block_key(SPACE, ROOT_KEY, (1, 2)) != block_key(SPACE, ROOT_KEY, (1, 2, 0))


def test_planned_faults_come_as_planned() -> None:
    backend = FaultyBackend(MemoryBackend(SPACE, LAYOUT), reads={0: Fault.CORRUPT}, writes={0: Fault.FULL})
    with pytest.raises(Refused):
        backend.write(_header(), _payload())
    backend.write(_header(), _payload())

    first, second = backend.read(_header().key, _room()), backend.read(_header().key, _room())

    assert isinstance(first, BlockMiss)
    assert isinstance(second, BlockHit)


def test_the_meter_counts_hits_misses_and_bytes() -> None:
    backend = MeteredBackend(MemoryBackend(SPACE, LAYOUT))
    backend.write(_header(), _payload())
    backend.read(_header().key, _room())
    backend.read(_header((9, 9, 9, 9)).key, _room())

    counts = backend.counts()

    assert (counts.hits, counts.read_bytes, counts.writes) == (1, 48, 1)
    assert counts.misses == {MissReason.ABSENT: 1}


def test_a_link_carries_its_rate_first_come_first_served() -> None:
    slept: list[float] = []
    pacer = LinkPacer(100.0, clock=lambda: 0.0, sleep=slept.append)

    pacer.take(50)
    pacer.take(100)

    assert slept == [0.5, 1.5]
    assert pacer.taken_bytes == 150
