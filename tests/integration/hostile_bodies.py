"""Requests that no client of ours would send: a seeded corpus of broken, absurd and hostile bodies."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from backports import zstd

from remat_solver.files import dump_json
from tests.integration.training_graphs import uneven_chain

JSON = {"Content-Type": "application/json"}
GRAPH: dict[str, Any] = json.loads(dump_json(uneven_chain(6, name="hostile")))
SOLVE = {"graph": GRAPH, "budget_fraction": 0.8, "time_limit_s": 0.2, "gap": 0.01, "tags": ["hostile"], "keep": ["f1"]}
FRONTIER = {"graph": GRAPH, "points": 2, "time_limit_s": 0.2}
RAW = "raw text goes here"
"""A value that stands for text which no JSON library would write."""
ABSURD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, -0.0, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30),
    *(1e308, 5e-324, "", "\x00", "\ud800", "\uffff", "é" * 300, "a" * 100_000, "../../etc/passwd", "%s%n"),
    *([], {}, [[]], [None] * 1000, {"": {}}, {"__proto__": 1}, list(range(-5, 5)), [[1, 2], [3]]),
)
RAW_TEXTS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "01", "1_000", "+1", ".5", "1.", "--1", "'a'"),
    *("9" * 5000, "1" + "0" * 400, "0." + "0" * 5000 + "1", "1e-99999", "undefined"),
    *("[" * 5000, "[" * 5000 + "]" * 5000, '{"a":' * 2000),
    *('"\\ud800"', '"\\u0000"', '"\\x41"', '"\n"', '"', "/* */1", "1,", "tru", ""),
)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One request. `cut`: how many bytes of the body are sent before the connection is closed (None: all)."""

    name: str
    method: str
    path: str
    content: bytes
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))
    cut: int | None = None


def attacks(seed: int, count: int) -> Iterator[Attack]:
    """`count` attacks, the same ones for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.choices([kind for kind, _ in _KINDS], [weight for _, weight in _KINDS])[0](rng)


def _target(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
    """A method, a path, and a body that would do there."""
    solve = "0" * 32
    return rng.choice(
        [
            ("POST", "/v1/graphs", GRAPH),
            ("POST", "/v1/graphs:validate", GRAPH),
            ("POST", "/v1/solves", SOLVE),
            ("POST", "/v1/frontiers", FRONTIER),
            ("POST", f"/v1/solves/{solve}/cancel", {"keep": "best"}),
            ("PUT", "/v1/graphs/{sha256}", GRAPH),
        ]
    )


def _attack(rng: random.Random, name: str, change: Callable[[dict[str, Any]], bytes], **headers: str) -> Attack:
    method, path, body = _target(rng)
    content = change(copy.deepcopy(body))
    path = path.replace("{sha256}", hashlib.sha256(content).hexdigest())
    return Attack(name=name, method=method, path=path, content=content, headers={**JSON, **headers})


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a node."""
    if isinstance(node, dict):
        own: list[tuple[Any, Any]] = [(node, key) for key in node]
        return own + [place for child in node.values() for place in _places(child)]
    if isinstance(node, list):
        own = [(node, index) for index in range(len(node))]
        return own + [place for child in node for place in _places(child)]
    return []


def _written(body: Any) -> bytes:
    return json.dumps(body).encode("utf-8", "surrogatepass")


def _absurd_value(rng: random.Random) -> Attack:
    """One to three values replaced by ones of another type or size."""

    def change(body: dict[str, Any]) -> bytes:
        for _ in range(rng.randint(1, 3)):
            container, key = rng.choice(_places(body) or [(body, "a")])
            container[key] = copy.deepcopy(rng.choice(ABSURD))
        return _written(body)

    return _attack(rng, "absurd value", change)


def _raw_value(rng: random.Random) -> Attack:
    """A value replaced by text that is no JSON, or JSON at its limits."""

    def change(body: dict[str, Any]) -> bytes:
        container, key = rng.choice(_places(body))
        container[key] = RAW
        return _written(body).replace(json.dumps(RAW).encode(), rng.choice(RAW_TEXTS).encode())

    return _attack(rng, "raw value", change)


def _keys(rng: random.Random) -> Attack:
    """A key missing, unknown, or there twice."""

    def change(body: dict[str, Any]) -> bytes:
        container, key = rng.choice([place for place in _places(body) if isinstance(place[0], dict)])
        how = rng.choice(("missing", "unknown", "twice"))
        if how == "twice":
            text = _written(body)
            pair = b'"' + str(key).encode() + b'":'
            return text.replace(pair, pair + b"0," + pair, 1).replace(b": ", b":")
        if how == "missing":
            del container[key]
        else:
            container[rng.choice(("", "x" * 5000, "\x00", "schema_", "__class__"))] = 1
        return _written(body)

    return _attack(rng, "keys", change)


def _noise(rng: random.Random) -> Attack:
    """Bytes flipped, dropped or put in."""

    def change(body: dict[str, Any]) -> bytes:
        text = bytearray(_written(body))
        for _ in range(rng.randint(1, 20)):
            at = rng.randrange(len(text))
            match rng.randrange(3):
                case 0:
                    text[at] = rng.randrange(256)
                case 1:
                    del text[at : at + rng.randint(1, 30)]
                case _:
                    text[at:at] = rng.randbytes(rng.randint(1, 8))
            text = text or bytearray(b"{")
        return bytes(text)

    return _attack(rng, "noise", change)


def _encoding(rng: random.Random) -> Attack:
    """Another character encoding, another compression, or one that is not what it says."""
    codec = rng.choice(("utf-16", "utf-32", "utf-8-sig", "utf-16-le", "cp037", "utf-7"))
    pack: Callable[[bytes], bytes] = rng.choice((gzip.compress, zstd.compress))
    spoil: Callable[[bytes], bytes] = rng.choice(
        (lambda data: data, lambda data: data[:-4], lambda data: data * 2, lambda data: data + b"more")
    )
    named = rng.choice(("gzip", "zstd", "identity", "br", "gzip, zstd", "", "x" * 3000))

    def change(body: dict[str, Any]) -> bytes:
        text = json.dumps(body).encode(codec) if rng.random() < 0.4 else _written(body)
        return spoil(pack(text)) if rng.random() < 0.7 else text

    return _attack(rng, "encoding", change, **{"Content-Encoding": named})


def _bomb(rng: random.Random) -> Attack:
    """Little on the wire, much in memory."""
    content, encoding = rng.choice(_BOMBS)
    return _attack(rng, "bomb", lambda _: content, **{"Content-Encoding": encoding})


def _nesting(rng: random.Random) -> Attack:
    """Depth."""
    depth = rng.choice((100, 500, 999, 1001, 10_000, 200_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"ops":', b"}]")))
    whole = opening * depth + b"1" + closing * depth * rng.randint(0, 1)
    return _attack(rng, "nesting", lambda body: whole if rng.random() < 0.5 else b'{"ops":' + whole + b"}")


def _size(rng: random.Random) -> Attack:
    """Sound graphs at the limits of what numbers can be, and lists that are long."""

    def change(body: dict[str, Any]) -> bytes:
        graph = body.get("graph", body)
        if "ops" in graph:
            large = rng.choice((2**31, 2**62, 2**63 - 1, 10**18))
            for op in graph["ops"]:
                op["time_ns"] = rng.choice((0, large))
                for value in op.get("writes", ()):
                    value["size_bytes"] = rng.choice((0, 1, large))
            graph["fixed_bytes"] = rng.choice((0, large))
            graph["outputs"] = rng.choice(([], [0] * 1000, list(range(12)), [10**6]))
            graph["name"] = rng.choice(("", "n" * 10_000, "\u202e", "a\nb"))
        for name in ("keep", "recompute", "tags"):
            if name in body:
                body[name] = rng.choice((["*"] * 2000, ["[" * 150], ["*a" * 100], ["f?"], [""]))
        body["threads" if "graph" in body else "extra"] = rng.choice((0, 1, 10**6))
        return _written(body)

    return _attack(rng, "size", change)


def _headers(rng: random.Random) -> Attack:
    """Headers that make no sense with the body or with each other."""
    name, value = rng.choice(
        (
            ("Content-Type", rng.choice(("text/plain", "", "application/json; charset=utf-16", "multipart/form-data"))),
            ("Prefer", rng.choice(("wait=-1", "wait=1e9", "wait=0", "wait=", "respond-async, wait=0"))),
            ("Idempotency-Key", rng.choice(("k" * 255, "k" * 256, "k", "a,b"))),
            ("If-None-Match", "*"),
            ("Authorization", rng.choice(("Bearer x", "Bearer", "Basic eA==", "Bearer " + "x" * 4000))),
            ("X-Request-ID", "x" * 2000),
            ("Expect", "100-continue"),
        )
    )
    return _attack(rng, "headers", _written, **{name: value})


def _address(rng: random.Random) -> Attack:
    """Addresses that are none."""
    part = rng.choice(("0" * 31, "0" * 32, "0" * 64, "..", "%2e%2e%2f", "%00", "%ff", "é", "x" * 3000))
    root = rng.choice(("/v1/solves/", "/v1/graphs/", "/v1/plans/", "/v1/frontiers/", "/"))
    path = root + part + rng.choice(("", "/plan", "/events", "/document", "/cancel"))
    query = rng.choice(("", "?keep=all", "?limit=0", "?limit=1e3", "?before=x", "?state=%00", "?" + "a=1&" * 500))
    method = rng.choice(("GET", "PUT", "DELETE", "PATCH", "POST", "HEAD", "OPTIONS"))
    return Attack(name="address", method=method, path=path + query, content=b"{}")


def _cut(rng: random.Random) -> Attack:
    """An upload that ends before its body does."""
    whole = _attack(rng, "cut", _written)
    return Attack(
        name="cut", method=whole.method, path=whole.path, content=whole.content, cut=rng.randrange(len(whole.content))
    )


_KINDS: tuple[tuple[Callable[[random.Random], Attack], float], ...] = (
    (_absurd_value, 30),
    (_raw_value, 15),
    (_keys, 10),
    (_noise, 15),
    (_encoding, 8),
    (_bomb, 0.5),
    (_nesting, 3),
    (_size, 8),
    (_headers, 5),
    (_address, 5),
    (_cut, 3),
)
_BOMBS = (
    (zstd.compress(b" " * 2**28), "zstd"),
    (gzip.compress(b"[" * 2**27), "gzip"),
    (zstd.compress(b"[" * (60 * 2**20)), "zstd"),
    (zstd.compress(b'{"ops":[' + b'{"name":"a","time_ns":1},' * 300_000 + b"{}]}"), "zstd"),
    (zstd.compress(b'{"a":"' + b"\\u0000" * 5_000_000 + b'"}'), "zstd"),
    (zstd.compress(b'{"a":[' + b"{}," * 10_000_000 + b"{}]}"), "zstd"),
)
