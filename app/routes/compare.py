"""Runs side by side."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.contract import RunStatus
from app.deps import MaxPoints, PartsDep, run_or_404
from app.documents import ComparedRun, Comparison, ConfigDifference
from app.problems import FieldProblem, documented, invalid
from app.runs import curves

router = APIRouter(tags=["runs"])

MOST_RUNS = 20


@router.get("/compare", responses=documented(404))
def compare(
    runs: Annotated[str, Query(max_length=2000, description="Run ids, with commas between them.")],
    parts: PartsDep,
    max_points: MaxPoints = None,
) -> Comparison:
    """Curves of several runs, and the config fields in which they differ."""
    ids = list(dict.fromkeys(part.strip() for part in runs.split(",") if part.strip()))
    if not 1 <= len(ids) <= MOST_RUNS:
        message = f"names {len(ids)} runs; 1 to {MOST_RUNS} can be compared"
        raise invalid([FieldProblem(path="query.runs", message=message)])
    with parts.database.read() as session:
        found = [run_or_404(session, run_id) for run_id in ids]
        compared = [
            ComparedRun(
                id=run.id,
                name=run.name,
                status=RunStatus(run.status),
                curves=curves(session, run, max_points),
            )
            for run in found
        ]
    return Comparison(
        runs=compared, config_differences=differences({run.id: run.config for run in found})
    )


def differences(configs: dict[str, dict[str, Any]]) -> list[ConfigDifference]:
    """The fields that are not the same in all configs, by their dotted path."""
    flat = {run_id: _flat(config) for run_id, config in configs.items()}
    paths = sorted({path for fields in flat.values() for path in fields})
    found = []
    for path in paths:
        values = {run_id: fields.get(path) for run_id, fields in flat.items()}
        first = next(iter(values.values()))
        if any(value != first for value in values.values()):
            found.append(ConfigDifference(path=path, values=values))
    return found


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            fields.update(_flat(value, f"{prefix}{key}."))
        else:
            fields[f"{prefix}{key}"] = value
    return fields
