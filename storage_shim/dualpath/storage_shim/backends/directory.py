"""Blocks as files under a directory that all nodes share: a local disk, or 3FS through its mount.

    {root}/{namespace digest}/manifest.json      readable: tenant, model, dtype, layout; checked at open
    {root}/{namespace digest}/ab/cd/{key}.kv     one block, written once
    {root}/{namespace digest}/tmp/{writer}.part  blocks being written

A block appears by a rename after its bytes are on disk, so it is whole or absent whatever dies when. A name is made of
the key's hex digits alone: nothing a peer sends can point outside the namespace's folder.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import threading
import time
from pathlib import Path

from dualpath.model.errors import Broken, Refused, Rejected
from dualpath.model.ids import BLOCK_KEY_BYTES, BlockKey, Namespace
from dualpath.model.layout import BlockLayout
from dualpath.storage_shim.blocks import check_block
from dualpath.storage_shim.codec import CHECKSUM_BYTES, VERSION, BlockFormat
from dualpath.storage_shim.outcomes import BlockHeader, BlockMiss, BlockRead, MissReason

LEFTOVER_AGE_S = 3600.0  # a .part file older than this belongs to a writer that died
FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_RETRY_S = 5.0


class DirectoryBackend:
    """One namespace of a shared directory.

    durable  fsync file and folder before a block counts as written; without it a power cut may lose new blocks (never
             corrupt them: the checksum turns a torn file into a miss)
    """

    def __init__(self, root: Path, namespace: Namespace, layout: BlockLayout, *, durable: bool = True) -> None:
        """raises Rejected(STORAGE_LAYOUT) if the folder holds blocks of something else, Refused if it cannot be used"""
        self._format = BlockFormat(namespace, layout)
        self._durable = durable
        self._folder = root / hashlib.sha256(namespace.encode()).hexdigest()[:32]
        self._parts = self._folder / "tmp"
        self._writer = f"{os.uname().nodename}-{os.getpid()}"
        self._number = itertools.count()
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
            _check_root(root, namespace, layout)
            _check_manifest(self._folder / "manifest.json", _manifest(namespace, layout))
            _sweep(self._parts)
        except OSError as error:
            message = f"storage directory {root}: {error.strerror}"
            raise Refused(message, retry_after_s=FULL_RETRY_S, reason="STORAGE_UNUSABLE") from error

    def read(self, key: BlockKey, into: memoryview) -> BlockRead:
        check_block(into, self._format.layout)
        header = memoryview(bytearray(self._format.header_bytes))
        checksum = memoryview(bytearray(CHECKSUM_BYTES))
        path = self._path(key)
        try:
            got = _read_all(path, [header, into, checksum])
        except FileNotFoundError:
            return BlockMiss(MissReason.ABSENT)
        except OSError as error:
            return BlockMiss(MissReason.IO_ERROR, error.strerror or str(error))
        if got < self._format.file_bytes:
            self._quarantine(path)
            return BlockMiss(MissReason.SHORT, f"{got} bytes, wanted {self._format.file_bytes}")
        outcome = self._format.verify(key, header, into, checksum)
        if isinstance(outcome, BlockMiss):
            self._quarantine(path)
        return outcome

    def write(self, header: BlockHeader, payload: memoryview) -> None:
        check_block(payload, self._format.layout)
        path = self._path(header.key)
        if path.exists():
            return
        encoded = self._format.encode_header(header)
        part = self._parts / f"{self._writer}-{threading.get_ident()}-{next(self._number)}.part"
        try:
            self._write_part(part, [memoryview(encoded), payload, memoryview(self._format.checksum(encoded, payload))])
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, path)
            if self._durable:
                _sync_folder(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise _translated(error, path, self._format.file_bytes) from error

    def contains(self, key: BlockKey) -> bool:
        return self._path(key).exists()

    def close(self) -> None:
        return None

    def _write_part(self, part: Path, views: list[memoryview]) -> None:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        try:
            _write_all(handle, views)
            if self._durable:
                os.fsync(handle)  # an error here is never retried: the kernel may have dropped the pages
        finally:
            os.close(handle)

    def _quarantine(self, path: Path) -> None:
        """Move a bad file out of the way, so that the block can be written again; keep it for a look."""
        with contextlib.suppress(OSError):
            os.replace(path, path.with_suffix(".bad"))

    def _path(self, key: BlockKey) -> Path:
        if len(key) != BLOCK_KEY_BYTES:
            raise Rejected(f"block key has {len(key)} bytes, wanted {BLOCK_KEY_BYTES}", field="key")
        name = key.hex()
        return self._folder / name[:2] / name[2:4] / f"{name}.kv"


def _manifest(namespace: Namespace, layout: BlockLayout) -> dict[str, str | int]:
    tenant, model_name, model_revision, dtype, layout_hash = namespace.split("/")
    return {
        "format_version": VERSION,
        "tenant": tenant,
        "model_name": model_name,
        "model_revision": model_revision,
        "dtype": dtype,
        "num_layers": layout.num_layers,
        "block_tokens": layout.block_tokens,
        "bytes_per_token_layer": layout.bytes_per_token_layer,
        "layout_hash": layout_hash,
    }


def _check_root(root: Path, namespace: Namespace, layout: BlockLayout) -> None:
    """Another layout of the same model in this directory means one of the two is misconfigured."""
    mine = _manifest(namespace, layout)
    same = ("tenant", "model_name", "model_revision", "dtype")
    for path in sorted(root.glob("*/manifest.json")):
        other = _load(path)
        if all(other.get(field) == mine[field] for field in same) and other.get("layout_hash") != mine["layout_hash"]:
            found = f"{path.parent} holds {mine['model_name']} blocks of layout {_layout_text(other)}"
            message = f"{found}, this engine has {layout}"
            raise Rejected(message, field="storage", reason="STORAGE_LAYOUT", precondition=True)


def _check_manifest(path: Path, mine: dict[str, str | int]) -> None:
    if not path.exists():
        part = path.with_name(f"manifest-{os.getpid()}-{threading.get_ident()}.part")
        part.write_text(json.dumps(mine, indent=2) + "\n")
        os.replace(part, path)
        return
    other = _load(path)
    for field, wanted in mine.items():
        if other.get(field) != wanted:
            message = f"{path}: {field} is {other.get(field)!r}, this engine has {wanted!r}"
            raise Rejected(message, field="storage", reason="STORAGE_LAYOUT", precondition=True)


def _load(path: Path) -> dict[str, str | int]:
    try:
        loaded = json.loads(path.read_text())
    except ValueError as error:
        message = f"{path} is no JSON ({error}); remove it if this directory is meant for KV blocks"
        raise Rejected(message, field="storage", reason="STORAGE_LAYOUT", precondition=True) from error
    return loaded if isinstance(loaded, dict) else {}


def _layout_text(manifest: dict[str, str | int]) -> str:
    layers, tokens, size = (manifest.get(f) for f in ("num_layers", "block_tokens", "bytes_per_token_layer"))
    return f"{layers} layers x {tokens} tokens x {size} B"


def _sweep(parts: Path) -> None:
    """Remove what writers left that died long ago; a living writer's file is young."""
    for part in parts.glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > LEFTOVER_AGE_S:
                part.unlink()


def _read_all(path: Path, views: list[memoryview]) -> int:
    """Fill the views from the file's start; returns the bytes read, fewer only at the file's end."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        total = 0
        pending = list(views)
        while pending:
            got = os.preadv(handle, pending, total)
            if got == 0:
                break
            total += got
            while pending and got >= len(pending[0]):
                got -= len(pending.pop(0))
            if got:
                pending[0] = pending[0][got:]
        return total
    finally:
        os.close(handle)


def _write_all(handle: int, views: list[memoryview]) -> None:
    pending = list(views)
    while pending:
        written = os.writev(handle, pending)
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _translated(error: OSError, path: Path, nbytes: int) -> Refused | Broken:
    if error.errno in FULL:
        message = f"no room for a block of {nbytes} bytes in {path.parents[2]}"
        return Refused(message, retry_after_s=FULL_RETRY_S, reason="STORAGE_FULL")
    return Broken(f"writing {path.name[:16]}: {error.strerror}", reason="STORAGE_IO")
