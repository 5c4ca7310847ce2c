"""`manage.py serve`: the gateway and the admin."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import importlib
import logging
import os
import socket
import sys
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from hopbase_site import release, valkey
from hopbase_site.workers import Workers

log = logging.getLogger("hopbase.serve")

THREADS_S = 0.5
SWITCH_S = 0.001
"""How long the event loop may keep the ledger's thread from the interpreter: clients wait for that thread in turn."""
YOUNG_OBJECTS = 10_000
"""New objects between two collections; those of the start are never looked at again."""


class Command(BaseCommand):
    help = "Serve the gateway and the admin (production runs the two roles apart)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--role", choices=("all", "gateway", "admin"), default="all")
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--workers", type=int, default=1, help="processes that share the port (uvicorn only)")
        parser.add_argument("--server", choices=("uvicorn", "daphne"), default="uvicorn")
        parser.add_argument("--fd", type=int, default=None, help=argparse.SUPPRESS)  # a worker's inherited listener

    def handle(self, *args: Any, **options: Any) -> None:
        if options["workers"] < 1 or (options["workers"] > 1 and options["server"] == "daphne"):
            raise CommandError("--workers must be 1 or more, and 1 with Daphne: run more `serve` processes instead")
        if ":" in options["host"] and options["server"] == "daphne":
            raise CommandError("Daphne is served on IPv4 addresses only: give one with --host, or use --server uvicorn")
        require_migrations()
        with (
            contextlib.closing(listener(options["host"], options["port"], options["fd"])) as listening,
            valkey.running(),
        ):
            if options["workers"] > 1:
                run_workers(options, listening)
            else:
                serve(options["role"], options["server"], listening, worker=options["fd"] is not None)
        leave_behind_threads()


def leave_behind_threads() -> None:
    """End the process though a thread waits for a database that says nothing: Python itself would wait with it."""
    others = [one for one in threading.enumerate() if one is not threading.current_thread() and not one.daemon]
    for one in others:
        one.join(THREADS_S)
    if any(one.is_alive() for one in others):
        log.warning("threads that wait for the database are left behind")
        logging.shutdown()
        os._exit(0)


def require_migrations() -> None:
    """Refuse to serve on tables that are not the code's."""
    executor = MigrationExecutor(connections["default"])
    missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    connections.close_all()
    if missing:
        raise CommandError(f"{missing} migrations are not applied: run `python manage.py migrate`")


def listener(host: str, port: int, inherited: int | None) -> socket.socket:
    """A listening socket: the port is ours before anything else starts."""
    from hopbase_site.servers import BACKLOG

    if inherited is not None:
        return socket.socket(fileno=inherited)
    try:
        if not 0 <= port <= 65535:  # getaddrinfo takes it modulo 65536
            raise OverflowError("port must be 0-65535")
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        cut_dead_readers(found)
        found.bind(address)
        found.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        raise CommandError(_cannot_listen(host, port, error)) from None
    return found


def cut_dead_readers(listening: socket.socket) -> None:
    """Let the kernel end connections whose client reads nothing for too long; what is accepted inherits this.

    A server that closes such a connection waits for the client to read the rest: without this for ever. It is also the
    only thing that cuts a slow reader under Daphne.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.SLOW_READER_S * 1000))


def _cannot_listen(host: str, port: int, error: OSError | OverflowError) -> str:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return f"port {port} on {host} is taken: stop what listens there, or choose another with --port"
    if number == errno.EACCES:
        return f"port {port} needs more rights than this user has: choose one above 1023 with --port"
    return f"cannot listen on {host} port {port} ({error}): choose others with --host and --port"


def run_workers(options: dict[str, Any], listening: socket.socket) -> None:
    """Serve in several processes until a signal ends them."""
    from hopbase_site.servers import END_S

    command = worker_command(options, listening)
    Workers(options["workers"], command, listening.fileno(), settings.DRAIN_S + END_S).run()


def worker_command(options: dict[str, Any], listening: socket.socket) -> list[str]:
    """The arguments of `manage.py` for one of several workers."""
    host, port = listening.getsockname()[:2]
    where = ["--host", str(host), "--port", str(port), "--fd", str(listening.fileno())]
    return ["serve", "--role", options["role"], *where]


def serve(role: str, server: str, listening: socket.socket, worker: bool) -> None:
    """Serve in this process until a signal ends it. `worker`: as one of several, which another process ends."""
    from hopbase_site import servers

    os.environ["HOPBASE_ROLE"] = role
    site = importlib.import_module("hopbase_site.asgi")  # builds the application for the role, so only now
    application = servers.Application(
        site.application, site.begin_drain, site.end_runs, site.drained, site.aclose, settings.DRAIN_S, worker
    )
    host, port = listening.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    run = (
        importlib.import_module("hopbase_site.daphne_server").run_daphne if server == "daphne" else servers.run_uvicorn
    )

    def ready() -> None:
        settle_interpreter()
        log.info("HopBase serves on http://%s (role %s, %s, version %s)", address, role, server, release.VERSION)

    run(application, listening, ready)


def settle_interpreter() -> None:
    """Let the interpreter serve many short waits: see docs/performance.md."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
