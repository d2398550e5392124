"""Prometheus metrics. No label holds a key, an owner or a hash: their number would grow without bound."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)
GAPS = (0.0001, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class Metrics:
    """What one process counts; the queue's gauges are filled in when they are read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "remat_requests", "HTTP requests.", ["method", "route", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "remat_request_seconds",
            "Time to the response's headers; requests that asked to wait are not among them.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.questions = Counter(
            "remat_questions",
            "Questions by how they were met: cache (answer known), joined (an equal one was open), solve (a new job).",
            ["source"],
            registry=self.registry,
        )
        self.plans_by_key = Counter(
            "remat_plans_by_key", "GET /v1/plans/{key}, by hit or miss.", ["result"], registry=self.registry
        )
        self.job_seconds = Histogram(
            "remat_job_seconds",
            "Time from an attempt's claim to its end, by how it ended.",
            ["outcome"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.gap = Histogram(
            "remat_plan_gap",
            "Gap of stored plans, a share of the store-all time.",
            buckets=GAPS,
            registry=self.registry,
        )
        self.attempts_lost = Counter(
            "remat_attempts_lost", "Attempts whose worker died or was stopped.", registry=self.registry
        )
        self.jobs = Gauge("remat_jobs", "Open jobs by state.", ["state"], registry=self.registry)
        self.oldest_queued_seconds = Gauge(
            "remat_oldest_queued_seconds", "Age of the oldest job in the queue.", registry=self.registry
        )
        self.workers = Gauge("remat_workers", "Workers of this process that take jobs.", registry=self.registry)

    def text(self) -> bytes:
        """The exposition format that Prometheus scrapes."""
        return generate_latest(self.registry)
