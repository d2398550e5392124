"""Every error of Remat that a user can meet.

RematError
├── InvalidGraph             the graph breaks an invariant (names the op)
├── UnreadableFile           a file or body that can't be decoded into a graph or a plan
├── InvalidPlan              a schedule or plan that can't run, or whose figures are wrong
│   └── PlanMismatch         a plan made for another graph
├── InvalidRequest           a budget, limit or option that makes no sense
│   └── StrategyNotApplicable
├── SolveError
│   ├── InfeasibleBudget     proven: no plan fits (carries the proof's scope and figures)
│   ├── NoPlanInTime         stopped before any plan was found; says nothing about feasibility
│   ├── SolveCancelled       stopped by the caller before any plan was found
│   └── EngineError          the MIP engine misbehaved
│       ├── EngineMissing    its program can't be found
│       └── EngineFailed     it crashed, was killed or printed nonsense
├── CaptureError             the training step can't be turned into one graph
│   └── GraphBreak           Dynamo split the model (names the line and the reason)
├── ApplyError               the plan can't be put on this model
├── VerificationFailed       a planned step differed from the unmodified one
└── ServiceError             the solver service answered with a fault
    ├── ServiceUnavailable   it could not be reached, or was lost on the way
    ├── Unauthorized
    ├── NotFound
    ├── Conflict             the thing asked for doesn't go with the state of things (names it)
    ├── LimitExceeded        a body or graph larger than the service takes
    ├── TooManyRequests      a quota, rate or queue is full for now; says when to try again
    └── JobCancelled

Each error says what is wrong and where, carries its figures as fields, and ends in a next step
(`hint`). The service sends them as RFC 9457 problems and the client raises the same classes again:
`to_dict` and `from_dict` are the two halves of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class RematError(Exception):
    """Base of every error that Remat raises on purpose.

    `slug` is the stable name of the class on the wire; `fields` are its figures.
    """

    slug: ClassVar[str] = "error"
    field_names: ClassVar[tuple[str, ...]] = ()
    by_slug: ClassVar[dict[str, type[RematError]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        RematError.by_slug[cls.slug] = cls

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        unknown = set(fields) - set(self.field_names)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {min(unknown)!r}")
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields: dict[str, Any] = {name: fields.get(name) for name in self.field_names}

    def __getattr__(self, name: str) -> Any:
        if name in type(self).field_names:
            return self.__dict__.get("fields", {}).get(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return (RematError.from_dict, (self.to_dict(),))

    def to_dict(self) -> dict[str, Any]:
        """The error as plain JSON values: `type`, `detail`, `hint` and its fields."""
        return {"type": self.slug, "detail": self.message, "hint": self.hint, **self.fields}

    @staticmethod
    def from_dict(body: Mapping[str, Any]) -> RematError:
        """The error that `to_dict` described; an unknown `type` gives a plain `RematError`."""
        cls = RematError.by_slug.get(str(body.get("type", "")), RematError)
        fields = {name: body.get(name) for name in cls.field_names}
        return cls(str(body.get("detail", "unknown error")), hint=str(body.get("hint", "")), **fields)


class InvalidGraph(RematError, ValueError):
    """The graph breaks an invariant; `op` names the culprit where there is one."""

    slug = "invalid-graph"
    field_names = ("op",)


class UnreadableFile(RematError, ValueError):
    """A file or request body that is no graph, plan or request of ours; `where` is a path into it."""

    slug = "unreadable-file"
    field_names = ("path", "where")


class InvalidPlan(RematError, ValueError):
    """A schedule that can't run on its graph, or a plan whose figures the referee can't confirm."""

    slug = "invalid-plan"
    field_names: ClassVar[tuple[str, ...]] = ("step",)


class PlanMismatch(InvalidPlan):
    """The plan was made for another graph."""

    slug = "plan-mismatch"
    field_names = ("plan_graph_hash", "graph_hash")


class InvalidRequest(RematError, ValueError):
    """A budget, limit, option or name that makes no sense."""

    slug = "invalid-request"
    field_names = ("field",)


class StrategyNotApplicable(InvalidRequest):
    """The strategy can't work on this graph, and says why."""

    slug = "strategy-not-applicable"


class SolveError(RematError):
    """A solve ended without a plan."""

    slug = "solve-error"


class InfeasibleBudget(SolveError):
    """Proven: within `proof_scope`, no plan has a peak of at most `budget_bytes`.

    `proven_infeasible_below_bytes`: no budget below it has a plan. `known_feasible_bytes`: a budget
    for which a plan is known, or None. `proof_scope` is "order" or "checkmate" (see `plan.Plan`).
    """

    slug = "infeasible-budget"
    field_names = ("budget_bytes", "proven_infeasible_below_bytes", "known_feasible_bytes", "proof_scope")

    @staticmethod
    def describe(budget_bytes: int, below_bytes: int, proof_scope: str) -> str:
        """The proof in words: what can't be done in `budget_bytes`, and the least that it takes."""
        if proof_scope == "checkmate":
            return (
                f"no plan that runs each op at most once in a stage fits in {budget_bytes} bytes: such a plan needs "
                f"at least {below_bytes}."
            )
        return f"no plan fits in {budget_bytes} bytes: every plan needs at least {below_bytes}."


class NoPlanInTime(SolveError):
    """The time limit came before any plan. Nothing is known about whether one exists."""

    slug = "no-plan-in-time"
    field_names = ("budget_bytes", "time_limit_s", "known_feasible_bytes")


class SolveCancelled(SolveError):
    """The caller stopped the solve before any plan was found."""

    slug = "solve-cancelled"


class EngineError(SolveError):
    """The MIP engine misbehaved; `engine` names it."""

    slug = "engine-error"
    field_names = ("engine",)


class EngineMissing(EngineError):
    """The engine's program or package can't be found."""

    slug = "engine-missing"


class EngineFailed(EngineError):
    """The engine crashed, was killed or printed nonsense."""

    slug = "engine-failed"


class CaptureError(RematError):
    """The training step can't be turned into one op graph."""

    slug = "capture-error"


class GraphBreak(CaptureError):
    """Dynamo split the model; `where` is the user's file and line, `reason` Dynamo's own words."""

    slug = "graph-break"
    field_names = ("where", "reason")


class ApplyError(RematError):
    """The plan can't be put on this model."""

    slug = "apply-error"


class VerificationFailed(RematError):
    """A planned step differed from the unmodified one; `difference` says where first."""

    slug = "verification-failed"
    field_names = ("difference",)


class ServiceError(RematError):
    """The solver service answered with a fault; `status_code` is HTTP's."""

    slug = "service-error"
    field_names: ClassVar[tuple[str, ...]] = ("status_code", "url")


class ServiceUnavailable(ServiceError):
    """The service could not be reached, or was lost on the way."""

    slug = "service-unavailable"


class Unauthorized(ServiceError):
    """The key is missing, unknown, expired or lacks the scope."""

    slug = "unauthorized"


class NotFound(ServiceError):
    """The service has no such graph, solve or plan."""

    slug = "not-found"


class Conflict(ServiceError):
    """What was asked doesn't go with the state of things; `state` names it."""

    slug = "conflict"
    field_names = ("status_code", "url", "state")


class LimitExceeded(ServiceError):
    """A body or graph larger than the service takes: `limit` says how much it takes."""

    slug = "limit-exceeded"
    field_names = ("status_code", "url", "limit")


class TooManyRequests(ServiceError):
    """A quota, rate or queue is full; try again after `retry_after_s` seconds."""

    slug = "too-many-requests"
    field_names = ("status_code", "url", "retry_after_s")


class QueueTimeout(ServiceError):
    """No worker took the solve up within the time that it would wait."""

    slug = "queue-timeout"


class JobCancelled(ServiceError):
    """The solve was cancelled before it had a plan."""

    slug = "job-cancelled"
