"""The whole fleet in one small document: what a picture of it needs."""

from __future__ import annotations

from aiohttp import web

from timesyncd.messages.fleet import FleetMap
from timesyncd.web.api import VIEW
from timesyncd.web.responses import one
from timesyncd.web.routes import Query
from timesyncd.web.routes_part import One, Route


async def fleet_map(request: web.Request, _query: Query) -> web.Response:
    return one(request, request.app[VIEW].map())


ROUTE = Route("/api/v1/fleet/map", "Every node in few words, by place.", "reader", fleet_map, One(FleetMap))
