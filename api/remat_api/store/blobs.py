"""Immutable documents, compressed, under the sha256 of their plain bytes.

Small ones sit in their row; larger ones in files (`ab/abcdef….zst`) written whole or not at all. Beside
a PostgreSQL, which machines without a common folder share, all of them sit in their rows.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from backports import zstd

from remat_api.settings import Settings
from remat_solver.errors import ServiceError
from remat_solver.files import write_whole

INLINE_LIMIT_BYTES = 64 * 1024


def address(document: bytes) -> str:
    """sha256 (hex) of the bytes: where the document is kept."""
    return hashlib.sha256(document).hexdigest()


def blob_store(settings: Settings) -> BlobStore:
    """The documents of a service."""
    if settings.is_clustered:
        return BlobStore(None)
    return BlobStore(settings.data_dir / "blobs")


class BlobStore:
    """The folder of the larger documents; None: there is none."""

    def __init__(self, root: Path | None) -> None:
        self._root = root

    async def pack(self, blob_id: str, document: bytes) -> bytes | None:
        """Keeps the document; returns what its row must hold (None: it is in a file)."""
        data = await asyncio.to_thread(zstd.compress, document)
        if self._root is None or len(data) <= INLINE_LIMIT_BYTES:
            return data
        await asyncio.to_thread(write_whole, _path(self._root, blob_id), data)
        return None

    async def unpack(self, blob_id: str, data: bytes | None) -> bytes:
        """The document again, from its row's column or its file; raises `ServiceError` if it was damaged."""
        return await asyncio.to_thread(self._unpack, blob_id, data)

    def _unpack(self, blob_id: str, data: bytes | None) -> bytes:
        try:
            if data is None:
                data = _path(self._root or Path(), blob_id).read_bytes()
            document = zstd.decompress(data)
        except (OSError, zstd.ZstdError) as error:
            raise ServiceError(
                f"the stored document {blob_id[:12]} can't be read: {error}.",
                hint="Restore the service's data folder from a backup.",
            ) from None
        if address(document) != blob_id:
            raise ServiceError(
                f"the stored document {blob_id[:12]} is damaged.",
                hint="Restore the service's data folder from a backup.",
            )
        return document

    def delete(self, blob_id: str, *, older_than_ms: int) -> None:
        """Forgets the file of a document, if it has one that was not written again since that moment."""
        if self._root is None:
            return
        path = _path(self._root, blob_id)
        if path.exists() and path.stat().st_mtime * 1000 < older_than_ms:
            path.unlink(missing_ok=True)


def _path(root: Path, blob_id: str) -> Path:
    return root / blob_id[:2] / f"{blob_id}.zst"
