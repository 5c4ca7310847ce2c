"""Adjustments that people make, and when each of them counts; those that the ledger made count from their making."""

from zoneinfo import ZoneInfo

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import F


def fill(apps, schema_editor):
    """Give each adjustment its moment and day, and move its key's month, which no trigger has done for them."""
    alias = schema_editor.connection.alias
    months = apps.get_model("billing", "BudgetMonth").objects.using(alias)
    for adjustment in apps.get_model("billing", "Adjustment").objects.using(alias).select_related("account"):
        adjustment.effective_at = adjustment.created_at
        adjustment.day = adjustment.created_at.astimezone(ZoneInfo(adjustment.account.timezone)).date()
        adjustment.save(using=alias, update_fields=["effective_at", "day"])
        month, _ = months.get_or_create(api_key_id=adjustment.api_key_id, month=adjustment.day.replace(day=1))
        months.filter(pk=month.pk).update(
            spent_nanos=F("spent_nanos") + adjustment.amount_nanos, version=F("version") + 1
        )


def take_back(apps, schema_editor):
    """Adjustments move no month any more. Those that people made have no place in the older table, so they must not be."""
    alias = schema_editor.connection.alias
    months = apps.get_model("billing", "BudgetMonth").objects.using(alias)
    adjustments = apps.get_model("billing", "Adjustment").objects.using(alias)
    if adjustments.exclude(kind__in=("settled", "swept")).exists():
        raise RuntimeError("adjustments made by hand or carried over would be lost: this migration stays")
    for adjustment in adjustments.exclude(day=None):
        months.filter(api_key_id=adjustment.api_key_id, month=adjustment.day.replace(day=1)).update(
            spent_nanos=F("spent_nanos") - adjustment.amount_nanos, version=F("version") + 1
        )


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0005_meter_health"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="adjustment",
            options={
                "permissions": [("approve_adjustment", "Can approve adjustments")],
                "verbose_name": "adjustment",
                "verbose_name_plural": "adjustments",
            },
        ),
        migrations.AddField(
            model_name="adjustment",
            name="proposed_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
                verbose_name="by",
            ),
        ),
        migrations.AddField(
            model_name="adjustment",
            name="state",
            field=models.CharField(
                choices=[("proposed", "proposed"), ("approved", "approved"), ("rejected", "rejected")],
                default="approved",
                max_length=8,
                verbose_name="state",
            ),
        ),
        migrations.AddField(
            model_name="adjustment",
            name="decided_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
                verbose_name="decided by",
            ),
        ),
        migrations.AddField(
            model_name="adjustment",
            name="decided_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="decided"),
        ),
        migrations.AddField(
            model_name="adjustment",
            name="decision_reason",
            field=models.CharField(blank=True, max_length=300, verbose_name="why rejected"),
        ),
        migrations.AddField(
            model_name="adjustment",
            name="effective_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="counts from"),
        ),
        migrations.AddField(
            model_name="adjustment", name="day", field=models.DateField(blank=True, null=True, verbose_name="day")
        ),
        migrations.AlterField(
            model_name="adjustment",
            name="account",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="adjustments",
                to="billing.account",
                verbose_name="account",
            ),
        ),
        migrations.AlterField(
            model_name="adjustment",
            name="kind",
            field=models.CharField(
                choices=[
                    ("settled", "ended after all"),
                    ("swept", "later checkpoint"),
                    ("goodwill", "goodwill"),
                    ("correction", "correction"),
                    ("carried", "carried over"),
                ],
                max_length=12,
                verbose_name="kind",
            ),
        ),
        migrations.AlterField(
            model_name="adjustment",
            name="record",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="adjustments",
                to="billing.usagerecord",
                verbose_name="request",
            ),
        ),
        migrations.RunPython(fill, take_back),
        migrations.AddIndex(
            model_name="adjustment", index=models.Index(fields=["api_key", "day"], name="adjustment_by_day")
        ),
        migrations.AddConstraint(
            model_name="adjustment",
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('day__isnull', False), ('effective_at__isnull', False), ('state', 'approved')), models.Q(models.Q(('state', 'approved'), _negated=True), ('day', None), ('effective_at', None), ('invoice', None)), _connector='OR'), name='adjustment_counts_once_approved'),
        ),
        migrations.AddConstraint(
            model_name="adjustment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state", "approved"), _negated=True),
                    ("decided_by", None),
                    ("proposed_by", None),
                    models.Q(("decided_by", models.F("proposed_by")), _negated=True),
                    _connector="OR",
                ),
                name="adjustment_not_by_its_proposer",
            ),
        ),
    ]
