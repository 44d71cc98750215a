"""Keep a label and a taint on Kubernetes' nodes that state how far each clock may be off, by a hub's API."""

from __future__ import annotations

import asyncio
import logging
import os
from argparse import ArgumentParser, Namespace

from timesyncd.cli._common import url_of
from timesyncd.errors import TimesyncdError
from timesyncd.units import span_ns

EXAMPLES = (
    "timesyncd kubernetes-controller --max-bound 1us --url https://hub:8319",
    "timesyncd kubernetes-controller --max-bound 10us --url hub:8319 --api http://127.0.0.1:8001",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--max-bound",
        type=span_ns,
        required=True,
        metavar="SPAN",
        help="taint a node whose bound is wider than this, such as 500ns, 1us, 2ms, or unknown",
    )
    parser.add_argument(
        "--url",
        type=url_of,
        required=True,
        metavar="URL",
        help="a hub's page; its token is in the environment variable TIMESYNCD_TOKEN",
    )
    parser.add_argument(
        "--api",
        type=url_of,
        metavar="URL",
        help="the Kubernetes API, without credentials, such as kubectl proxy's (default: that of this pod's cluster)",
    )


def run(args: Namespace) -> int:
    """1 when the Kubernetes API or the hub refuses. Raises ConfigError outside of a pod without --api."""
    from timesyncd.kubernetes.api import KubernetesApi
    from timesyncd.kubernetes.controller import NodeController

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    api = KubernetesApi.in_cluster() if args.api is None else KubernetesApi(args.api, None)

    async def control() -> None:
        async with api:
            await NodeController(api, args.url, os.environ.get("TIMESYNCD_TOKEN"), args.max_bound).run()

    try:
        asyncio.run(control())
    except ExceptionGroup as group:
        if not isinstance(group.exceptions[0], TimesyncdError):
            raise
        raise group.exceptions[0] from None
    return 0
