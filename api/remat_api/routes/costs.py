"""/v1/costs: measured op costs that jobs on equal hardware share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Request

from remat_api.requests import CostsRequest
from remat_api.routes.context import ServiceOf
from remat_api.security.callers import Reader, Solver
from remat_api.store.costs import OpCost

router = APIRouter(prefix="/v1/costs", tags=["costs"])
_NAME_PATTERN = "^[ -.0-~]{1,200}$"
Device = Annotated[str, Path(pattern=_NAME_PATTERN, description="the device, as in `NVIDIA H200`; no slash")]
Torch = Annotated[str, Path(pattern=_NAME_PATTERN, description="PyTorch's version, and settings that matter")]


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Costs of one device and PyTorch, ordered by signature."""

    costs: tuple[OpCost, ...]


@router.get("/{device}/{torch}", operation_id="get_costs")
async def get_costs(device: Device, torch: Torch, service: ServiceOf, caller: Reader) -> CostTable:
    """Every cost that is known for a device and PyTorch; none is no error."""
    del caller
    return CostTable(costs=await service.costs.table(device, torch))


@router.put("/{device}/{torch}", operation_id="put_costs")
async def put_costs(device: Device, torch: Torch, request: Request, service: ServiceOf, caller: Solver) -> CostTable:
    """Adds measured costs. The first one of a signature stays; the answer says what now holds for those sent."""
    del caller
    measured = await service.intake.read(CostsRequest, request)
    return CostTable(costs=await service.costs.put(device, torch, measured.costs))
