"""For operators, over HTTP: the audit log (keys with the scope `admin`), and what a deletion has left behind."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict
from pydantic.config import JsonDict

from paml.serve.schemas import Answer
from paml.serve.service import Service

MAX_ENTRIES = 1000
REMAINS = "in the store's log, until those who read an older state have finished; it is tried again every second"


class DeletedOut(Answer):
    """A user who is deleted for everybody who asks, while bytes of them are still on the disk."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "deleted", "remains": REMAINS}]})

    status: Literal["deleted"] = "deleted"
    remains: str


class EntryOut(Answer):
    """A change: when, by which key, what, and, for changes of keys, which."""

    moment: datetime
    who: str
    what: str
    about: str


ENTRY: JsonDict = {"moment": "2026-11-17T10:00:00.123456+00:00", "who": "phone", "what": "delete user", "about": ""}


class AuditOut(Answer):
    """The last changes, the newest first."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"entries": [ENTRY]}]})

    entries: list[EntryOut]


def still_there() -> Response:
    """The answer to a deletion that has left bytes behind."""
    return JSONResponse(DeletedOut(remains=REMAINS).model_dump(), 202)


def add_audit(app: FastAPI, service: Service, problems: dict[int | str, dict[str, Any]]) -> None:
    """The route of the audit log."""

    @app.get("/v1/audit", response_model=AuditOut, responses=problems, summary="Who changed what and when")
    async def get_audit(limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = 100) -> Response:
        entries = await service.stored(lambda store: store.audit(limit))
        found = [{**vars(entry), "moment": entry.moment.isoformat(timespec="microseconds")} for entry in entries]
        return JSONResponse({"entries": found})
