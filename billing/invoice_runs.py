"""Work on invoices in the background: a month drafted or issued, an invoice proved.

    asked = ask_drafts(month, by=user)               the row, and a hint to the broker; or the run that is under way
    run(asked.pk)                                    the worker's part
    tend(now)                                        what was left lying is run

The row is the record, the broker only a hint. Each act is harmless when it is done twice, in parallel or half: drafts
are made anew, an invoice is issued once, a proof only reads. So a task that is delivered again, or a second worker that
takes a silent one for dead, changes no figure.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils.timezone import now

from billing import audit, broker, invoices, jobs, month_close, proofs
from billing.models import Invoice, InvoiceRun

if TYPE_CHECKING:
    from django.contrib.auth.models import User

Act, State = InvoiceRun.Act, InvoiceRun.State

TASK = "billing.tasks.run_invoices"


def ask_drafts(month: dt.date, *, by: User) -> InvoiceRun:
    """Have a month rolled up and drafted. While a run of the month is under way, that one is returned instead."""
    return _ask(InvoiceRun(act=Act.DRAFT, month=month.replace(day=1), asked_by=by))


def ask_issue(month: dt.date, drafts: Iterable[Invoice], *, by: User) -> InvoiceRun:
    """Have these drafts of a month issued, and no others: those that somebody has looked at. As `ask_drafts`."""
    chosen = {"chosen": [invoice.pk for invoice in drafts]}
    return _ask(InvoiceRun(act=Act.ISSUE, month=month.replace(day=1), asked_by=by, result=chosen))


def ask_proof(invoice: Invoice, *, by: User) -> InvoiceRun:
    """Have an invoice proved."""
    return _ask(InvoiceRun(act=Act.PROVE, month=invoice.month, invoice=invoice, asked_by=by))


def of_month(month: dt.date) -> InvoiceRun | None:
    """The month's newest run."""
    return InvoiceRun.objects.filter(month=month.replace(day=1), invoice=None).first()


def run(run_id: uuid.UUID) -> None:
    """Do a run's work. Runs that are done or failed are left alone."""
    found = InvoiceRun.objects.select_related("asked_by", "invoice").filter(pk=run_id, state__in=jobs.OPEN).first()
    if found is None:
        return
    if found.tries >= jobs.MAX_TRIES:
        _tell(found, state=State.FAILED, problem=jobs.TOO_OFTEN, finished_at=now())
        return
    found.started_at = found.started_at or now()
    _tell(found, state=State.RUNNING, tries=found.tries + 1, steps_done=0, started_at=found.started_at)
    with jobs.trying(partial(_tell, found), partial(_steps_done, found)), audit.acting(partial(_actor, found)):
        result = _ACTS[Act(found.act)](found)
        _tell(found, state=State.DONE, result=result, finished_at=now())


def tend(at: dt.datetime) -> int:
    """Run what waits or has stood still; returns how many were run."""
    return jobs.tend(InvoiceRun.objects, "asked_at", at, run)


def _ask(wanted: InvoiceRun) -> InvoiceRun:
    """Two that ask at once both try to insert it: a constraint lets one, and the other gets that one."""
    under_way = InvoiceRun.objects.filter(state__in=jobs.OPEN, invoice=wanted.invoice)
    if wanted.invoice is None:
        under_way = under_way.filter(month=wanted.month)
    try:
        with transaction.atomic():
            wanted.save(force_insert=True)
    except IntegrityError:
        if found := under_way.first():
            return found
        raise
    transaction.on_commit(partial(broker.hint, TASK, str(wanted.pk)))
    return wanted


def _draft(asked: InvoiceRun) -> dict[str, Any]:
    refused: list[str] = []
    drafted = month_close.draft(asked.month, now=now(), tell=partial(_progress, asked), refuse=refused.append)
    return {"drafts": len(drafted), "refused": refused}


def _issue(asked: InvoiceRun) -> dict[str, Any]:
    drafts = month_close.drafts(asked.month).filter(pk__in=asked.result["chosen"])
    outcome = month_close.issue(list(drafts), now=now(), tell=partial(_progress, asked))
    # By the clock, so that those of a try that broke off are among them.
    issued = invoices.of_month(asked.month).filter(issued_at__gte=asked.started_at)
    return {
        "chosen": asked.result["chosen"],
        "issued": list(issued.values_list("pk", flat=True)),
        "blocked": [[invoice.pk, list(reasons)] for invoice, reasons in outcome.blocked],
    }


def _prove(asked: InvoiceRun) -> dict[str, Any]:
    assert asked.invoice is not None
    return proofs.prove(asked.invoice, now=now(), tell=partial(_progress, asked)).as_json()


_ACTS: dict[str, Callable[[InvoiceRun], dict[str, Any]]] = {Act.DRAFT: _draft, Act.ISSUE: _issue, Act.PROVE: _prove}


def _progress(asked: InvoiceRun, done: int, total: int) -> None:
    _tell(asked, steps_done=done, steps_total=total)


def _tell(asked: InvoiceRun, **values: object) -> None:
    """Change a run that is under way; one that somebody else has finished stays as it is."""
    InvoiceRun.objects.filter(pk=asked.pk, state__in=jobs.OPEN).update(progress_at=Now(), **values)


def _steps_done(asked: InvoiceRun) -> object:
    return InvoiceRun.objects.values_list("steps_done", flat=True).get(pk=asked.pk)


def _actor(asked: InvoiceRun) -> audit.Actor:
    user = asked.asked_by
    return audit.Actor("worker") if user is None else audit.Actor(user.get_username(), user.pk)
