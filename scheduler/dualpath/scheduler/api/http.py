"""Probes, metrics and status over HTTP, on a port of its own that is off by default."""

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from google.protobuf.json_format import MessageToDict
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dualpath.model.errors import Standby
from dualpath.scheduler.api.admin import cell_status
from dualpath.scheduler.service.post import Post
from dualpath.v1 import admin_pb2

COUNTERS = ("accepted", "committed", "failed", "cancelled", "attempts_returned", "stale_commits")
NIC_COUNTERS = ("snic_read_bytes", "snic_written_bytes", "cnic_sent_bytes", "cnic_received_bytes")


class CellCollector(Collector):
    """Reads the cell when scraped: nothing is counted twice and a scrape costs nothing in between."""

    def __init__(self, post: Post, store_name: str) -> None:
        self._post = post
        self._store_name = store_name

    def collect(self):  # type: ignore[no-untyped-def]
        """One family per number of the status, with bounded labels (engine, node, side, line)."""
        active = self._post.is_active
        yield GaugeMetricFamily("dualpath_scheduler_active", "1 where this scheduler leads the cell", value=int(active))
        if not active:
            return
        status = cell_status(self._post.cell, self._store_name)
        for name in COUNTERS:
            yield CounterMetricFamily(f"dualpath_turns_{name}", f"turns {name}", value=getattr(status, name))
        reads = CounterMetricFamily("dualpath_reads", "turns whose hit KV was read on a side", labels=["read_side"])
        reads.add_metric(["pe"], status.pe_side_reads)
        reads.add_metric(["de"], status.de_side_reads)
        yield reads
        yield _queue_lengths(status)
        yield from _loads(status)


def _queue_lengths(status: admin_pb2.CellStatus) -> GaugeMetricFamily:
    lengths = GaugeMetricFamily("dualpath_queue_turns", "turns in a line", labels=["line"])
    lengths.add_metric(["prefill_fifo"], status.queues.prefill_fifo)
    lengths.add_metric(["decode_queue"], status.queues.decode_queue)
    lengths.add_metric(["group_queues"], sum(status.queues.group_queues.values()))
    return lengths


def _loads(status: admin_pb2.CellStatus):  # type: ignore[no-untyped-def]
    tokens = GaugeMetricFamily("dualpath_engine_open_tokens", "open tokens of an engine", labels=["engine"])
    queue = GaugeMetricFamily("dualpath_node_read_queue_tokens", "read queue of a node", labels=["node"])
    nics = CounterMetricFamily("dualpath_nic_bytes", "bytes through a node's NICs", labels=["node", "direction"])
    for group in status.groups:
        for engine in group.engines:
            tokens.add_metric([engine.engine_id], engine.open_tokens)
        for node in group.nodes:
            queue.add_metric([node.info.node_id], node.load.read_queue_tokens)
            for name in NIC_COUNTERS:
                nics.add_metric([node.info.node_id, name.removesuffix("_bytes")], getattr(node.load, name))
    yield tokens
    yield queue
    yield nics


def build_http(post: Post, store_name: str) -> FastAPI:
    """Alive is every scheduler that answers, ready only the active one."""
    app = FastAPI(title="DualPath scheduler", docs_url="/docs", redoc_url=None)
    registry = CollectorRegistry()
    registry.register(CellCollector(post, store_name))

    @app.exception_handler(Standby)
    def standby(request: Request, error: Standby) -> JSONResponse:
        body = {"status": "standby", "active": post.active_address, "message": str(error)}
        return JSONResponse(body, status_code=503)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @app.get("/readyz")
    def readyz() -> dict[str, str]:
        """This scheduler is the cell's active one."""
        return {"status": "ok", "cell": post.cell.core.cell}

    @app.get("/status")
    def status() -> dict[str, object]:
        return MessageToDict(cell_status(post.cell, store_name), preserving_proto_field_name=True)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app
