"""Files that appear whole or not at all, and what the operating system refuses, said to the user."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdac.errors import UserError


@contextlib.contextmanager
def explained(
    path: str | Path, action: str, advice: str = "check that it exists and is yours to use", num_bytes: int = 0
) -> Iterator[None]:
    """Turns what the operating system refuses into a UserError about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            size = f", which needs {num_bytes:,} bytes" if num_bytes else ""
            raise UserError(f"disk full: could not {action} {path}{size}; free some space") from error
        raise UserError(f"could not {action} {path}: {error.strerror or error}; {advice}") from error


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file, all or nothing; OSError if it cannot."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_bytes(data)
        sync(partial)
        os.replace(partial, path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_file(path: str | Path, data: bytes) -> None:
    """Writes a file, all or nothing; UserError if it cannot."""
    with explained(path, "write", num_bytes=len(data)):
        write_bytes(Path(path), data)


def write_json(path: str | Path, value: Any) -> None:
    """Writes `value` as indented JSON, all or nothing."""
    write_file(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def read_json(path: Path, fields: set[str]) -> dict:
    """Returns the object in a JSON file; ValueError if it is anything else or lacks a field."""
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict) or not fields <= value.keys():
        raise ValueError(f"{path.name} lacks {' or '.join(sorted(fields))}")
    return value


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
