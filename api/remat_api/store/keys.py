"""API keys. Only the sha256 of a secret is kept: 256 random bits need no slow hash."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from remat_api.store.clock import now_ms
from remat_api.store.database import Database
from remat_api.store.tables import api_keys, jobs, solves
from remat_solver.errors import InvalidRequest, NotFound

PREFIX = "rmt"
KNOWN_SCOPES = ("solve", "read", "admin")
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key without its secret. A quota of 0 sets no limit; times are UTC milliseconds."""

    id: str
    name: str
    scopes: tuple[str, ...]
    max_open_solves: int
    solve_seconds_per_day: int
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None
    last_used_ms: int | None = None

    def is_valid(self, moment_ms: int) -> bool:
        """Whether it opens anything at that time."""
        return self.state(moment_ms) == "valid"

    def state(self, moment_ms: int) -> str:
        """ "valid", "revoked" or "expired" at that time."""
        if self.revoked_ms is not None:
            return "revoked"
        return "valid" if self.expires_ms is None or moment_ms < self.expires_ms else "expired"


class KeyStore:
    """Making, finding and revoking keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        name: str,
        scopes: tuple[str, ...],
        *,
        expires_ms: int | None = None,
        max_open_solves: int = 0,
        solve_seconds_per_day: int = 0,
    ) -> tuple[ApiKey, str]:
        """A new key and its text, which is shown this once and can't be found out again."""
        secret = secrets.token_urlsafe(32)
        key = ApiKey(
            id=secrets.token_hex(6),
            name=name,
            scopes=scopes,
            max_open_solves=max_open_solves,
            solve_seconds_per_day=solve_seconds_per_day,
            created_ms=now_ms(),
            expires_ms=expires_ms,
        )
        row = {**key.__dict__, "scopes": list(scopes), "secret_hash": hash_secret(secret)}
        async with self._database.writing() as connection:
            await connection.execute(sa.insert(api_keys).values(**row))
        return key, f"{PREFIX}_{key.id}_{secret}"

    async def find(self, text: str) -> ApiKey | None:
        """The key with this text, valid or not; None for anything else."""
        prefix, _, rest = text.partition("_")
        key_id, _, secret = rest.partition("_")
        if prefix != PREFIX or not secret:
            return None
        async with self._database.reading() as connection:
            row = (await connection.execute(sa.select(api_keys).where(api_keys.c.id == key_id))).one_or_none()
        if row is None or not secrets.compare_digest(row.secret_hash, hash_secret(secret)):
            return None
        return _key(row)

    async def touch(self, key_id: str) -> None:
        """Notes that the key was used."""
        async with self._database.writing() as connection:
            await connection.execute(sa.update(api_keys).where(api_keys.c.id == key_id).values(last_used_ms=now_ms()))

    async def by_id(self, key_id: str) -> ApiKey | None:
        """The key with this id, valid or not."""
        async with self._database.reading() as connection:
            row = (await connection.execute(sa.select(api_keys).where(api_keys.c.id == key_id))).one_or_none()
        return row and _key(row)

    async def listing(self) -> list[ApiKey]:
        """Every key, oldest first."""
        async with self._database.reading() as connection:
            return [_key(row) for row in await connection.execute(sa.select(api_keys).order_by(api_keys.c.created_ms))]

    async def any_valid(self) -> bool:
        """Whether there is a key that opens anything."""
        moment_ms = now_ms()
        return any(key.is_valid(moment_ms) for key in await self.listing())

    async def revoke(self, key_id: str) -> None:
        """Ends a key for good; raises `NotFound`."""
        mine = (api_keys.c.id == key_id, api_keys.c.revoked_ms.is_(None))
        async with self._database.writing() as connection:
            result = await connection.execute(sa.update(api_keys).where(*mine).values(revoked_ms=now_ms()))
        if result.rowcount != 1:
            raise NotFound(f"there is no unrevoked key {key_id[:20]!r}.", hint="See `remat keys list`.")

    async def open_solves(self, owner: str) -> int:
        """How many solves of an owner are not over."""
        mine = (solves.c.owner == owner, solves.c.state.in_(("queued", "running")))
        async with self._database.reading() as connection:
            return await connection.scalar(sa.select(sa.func.count()).select_from(solves).where(*mine)) or 0

    async def solve_seconds_today(self, owner: str) -> float:
        """Seconds that workers spent within the last 24 hours on jobs that this owner began."""
        spent_ms = sa.func.coalesce(jobs.c.finished_ms, now_ms()) - jobs.c.started_ms
        mine = (solves.c.owner == owner, solves.c.source == "solve", jobs.c.started_ms > now_ms() - DAY_MS)
        query = sa.select(sa.func.sum(spent_ms)).select_from(solves.join(jobs, jobs.c.id == solves.c.job_id))
        async with self._database.reading() as connection:
            return float(await connection.scalar(query.where(*mine)) or 0) / 1000


def check_key_request(name: str, scopes: tuple[str, ...]) -> None:
    """Raises `InvalidRequest` unless a key may have this name and these scopes."""
    for wanted in scopes:
        if wanted not in KNOWN_SCOPES:
            raise InvalidRequest(
                f"scope {wanted[:40]!r} is unknown.", hint=f"Choose from {', '.join(KNOWN_SCOPES)}.", field="scope"
            )
    if not 0 < len(name) <= 100 or not name.isprintable():
        raise InvalidRequest("a key's name is 1 to 100 printable characters.", field="name")


def hash_secret(secret: str) -> str:
    """sha256 (hex)."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(row: sa.Row[tuple[object, ...]]) -> ApiKey:
    columns = {name: value for name, value in row._mapping.items() if name != "secret_hash"}
    return ApiKey(**{**columns, "scopes": tuple(columns["scopes"])})
