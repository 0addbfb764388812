"""``POST /slots/N?action=save``, ``restore`` and ``erase``, as llama.cpp has them.

A sequence has no place of its own here. A slot's number stands for the caller's last request that named it as
``id_slot``; any other number for its last request of all. What ``--session-dir`` keeps is found by its tokens, so a
restored file needs no place either: it is a list of tokens whose rows are still there.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from outrider.sessions import SessionStore
from outrider_server.http.context import tenant_of
from outrider_server.http.errors import ApiError, invalid, json_response
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.models import service_of
from outrider_server.said import Said
from outrider_server.service import Service

router = APIRouter()
_NAME = re.compile(r"[\w\-][\w\-. ]{0,199}")


class SlotRequest(BaseModel):
    filename: str | None = Field(None, max_length=200, description="Of the caller's own: no folder, no path.")
    model: str | None = None


class SlotAnswer(BaseModel):
    id_slot: int
    filename: str | None = None
    n_saved: int | None = None
    n_written: int | None = None
    n_restored: int | None = None
    n_read: int | None = None
    n_erased: int | None = None
    timings: dict[str, float] | None = None


@router.post("/slots/{slot}", **documented(SlotRequest, SlotAnswer))
async def change_slot(
    request: Request,
    slot: str,
    body: Annotated[SlotRequest, Depends(json_body(SlotRequest, untyped=True))],
) -> Response:
    """``?action=``: save the last sequence of a slot under a name, restore it, or erase what is known of it."""
    number, action = _number(slot), request.query_params.get("action")
    if action not in ("save", "restore", "erase"):
        raise invalid(f"action={action!r:.40} is not known: use save, restore or erase", "action")
    service = await service_of(request, body.model)
    service.check_model(body.model)
    store, tenant = service.engine.llm.sessions, tenant_of(request)
    if store is None:
        raise invalid("slots cannot be saved: start the server with --session-dir", None, "unsupported")
    if action == "erase":
        return json_response({"id_slot": number, "n_erased": service.said.forget(tenant, number)})
    name = _name(service, tenant, body.filename)
    work = _save if action == "save" else _restore
    answer = await service.executors.run(lambda: work(store, service, tenant, number, name))
    return json_response({"filename": body.filename} | answer)


def _number(slot: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", slot):
        raise invalid(f"slot {slot!r:.40} is no number of a slot", "id_slot")
    return int(slot)


def _name(service: Service, tenant: str, name: str | None) -> bytes:
    """Of a caller's file: nobody finds out the names that another gave."""
    if name is None or not _NAME.fullmatch(name):
        raise invalid(f"filename={name!r:.60} is no name of a file: use letters, digits, - _ and .", "filename")
    named = f"{service.callers.domain(tenant, '')}\0{name}"
    return hashlib.blake2b(named.encode(), digest_size=16).digest()


def _save(store: SessionStore, service: Service, tenant: str, slot: int, name: bytes) -> dict[str, Any]:
    began = time.perf_counter()
    said = service.said.last(tenant, slot)
    if said is None:
        raise invalid(f"slot {slot} has said nothing yet: send a request first", "id_slot")
    store.flush()
    found, length = store.find(said.tokens, said.salt)
    store.slots.save(name, said.salt, said.tokens[:length])
    size = sum(each.size for each in found)
    return {"id_slot": slot, "n_saved": length, "n_written": size, "timings": _ms("save", began)}


def _restore(store: SessionStore, service: Service, tenant: str, slot: int, name: bytes) -> dict[str, Any]:
    began = time.perf_counter()
    kept = store.slots.load(name)
    if kept is None:
        raise ApiError(404, "no slot was saved under this filename, or its model has changed", code="not_found")
    salt, tokens = kept
    found, length = store.find(tokens, salt)
    service.said.note(tenant, slot, Said(tokens[:length], salt))
    size = sum(each.size for each in found)
    return {"id_slot": slot, "n_restored": length, "n_read": size, "timings": _ms("restore", began)}


def _ms(name: str, began: float) -> dict[str, float]:
    return {f"{name}_ms": 1000 * (time.perf_counter() - began)}
