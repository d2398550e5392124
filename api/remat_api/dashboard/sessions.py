"""Sessions: who signed in, in a signed cookie. The service stores nothing of them."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict, dataclass

from fastapi import Request, Response
from itsdangerous import BadData, URLSafeTimedSerializer

from remat_api.dashboard.addresses import base_of
from remat_api.settings import Settings
from remat_solver.files import write_whole

COOKIE = "remat_session"
LASTS_S = 12 * 3600
SECRET_FILE = "session.secret"


@dataclass(frozen=True, kw_only=True)
class Session:
    """`owner`: the caller's (a key's id, say), "" before signing in. `csrf_token`: what every action must show."""

    owner: str
    csrf_token: str


def new_session(owner: str) -> Session:
    """A session with a token of its own."""
    return Session(owner=owner, csrf_token=secrets.token_urlsafe(24))


class Sessions:
    """Signs and reads session cookies. Another signing secret or operator's key ends all sessions."""

    def __init__(self, settings: Settings) -> None:
        secret = settings.session_secret or _own_secret(settings)
        admin_key = hashlib.sha256(settings.admin_key.encode()).hexdigest()
        self._serializer = URLSafeTimedSerializer([secret + admin_key], salt="remat-session/1")

    def read(self, request: Request) -> Session | None:
        """The request's session; None if it has none, or an old or forged one."""
        try:
            return Session(**self._serializer.loads(request.cookies.get(COOKIE, ""), max_age=LASTS_S))
        except (BadData, TypeError):
            return None

    def write(self, session: Session, request: Request, response: Response) -> None:
        """Makes the response carry a session: for this site's own pages alone, and out of the reach of scripts."""
        response.set_cookie(
            COOKIE,
            self._serializer.dumps(asdict(session)),
            max_age=LASTS_S,
            path=base_of(request),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


def _own_secret(settings: Settings) -> str:
    """The signing secret of the data folder, made at first use; one of this process where many serve one database."""
    if settings.is_clustered:
        return secrets.token_urlsafe(32)
    path = settings.data_dir / SECRET_FILE
    if not path.exists():
        write_whole(path, secrets.token_urlsafe(32).encode())
        path.chmod(0o600)
    return path.read_text()
