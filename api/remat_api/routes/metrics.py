"""/metrics, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from remat_api.routes.context import ServiceOf
from remat_api.security.callers import Reader

router = APIRouter(tags=["health"])


@router.get("/metrics", operation_id="metrics", response_class=Response)
async def metrics(service: ServiceOf, caller: Reader) -> Response:
    """Counters, histograms and the state of the queue, in Prometheus' text format."""
    del caller
    queue = await service.jobs.queue()
    counted = service.metrics
    counted.jobs.labels("queued").set(queue.queued)
    counted.jobs.labels("running").set(queue.running)
    counted.oldest_queued_seconds.set(queue.oldest_queued_s)
    counted.workers.set(service.engine.live_workers)
    return Response(counted.text(), media_type=CONTENT_TYPE_LATEST)
