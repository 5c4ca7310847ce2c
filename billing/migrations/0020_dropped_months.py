"""What is left of months of records that were dropped (billing/dropping.py); undone only where none was."""

import django.db.models.deletion
from django.db import migrations, models


def refuse_to_forget(apps, schema_editor):
    """Without these tables days would be summed anew from what is left, and invoices made void that bill more."""
    if apps.get_model("billing", "DroppedMonth").objects.using(schema_editor.connection.alias).exists():
        raise RuntimeError("months of usage records were dropped: this migration, which knows which, is not undone")


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0019_records_to_ship"),
    ]

    operations = [
        migrations.CreateModel(
            name="DroppedMonth",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("partition", models.CharField(max_length=63, verbose_name="partition")),
                ("start", models.DateTimeField(null=True, verbose_name="from")),
                ("end", models.DateTimeField(unique=True, verbose_name="until")),
                ("last_day", models.DateField(verbose_name="last day")),
                ("records", models.BigIntegerField(verbose_name="requests")),
                ("costs", models.JSONField(default=dict, verbose_name="cost")),
                ("file_name", models.CharField(max_length=200, verbose_name="file")),
                ("sha256", models.CharField(max_length=64, verbose_name="SHA-256")),
                ("dropped_at", models.DateTimeField(verbose_name="dropped")),
            ],
            options={
                "verbose_name": "dropped month",
                "verbose_name_plural": "dropped months",
                "ordering": ["-end"],
            },
        ),
        migrations.CreateModel(
            name="DroppedRecord",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "dropped request",
                "verbose_name_plural": "dropped requests",
            },
        ),
        migrations.CreateModel(
            name="DroppedInvoice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("records", models.BigIntegerField(verbose_name="requests")),
                ("cost_nanos", models.BigIntegerField(verbose_name="cost")),
                ("sums", models.JSONField(default=list)),
                (
                    "invoice",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="dropped",
                        to="billing.invoice",
                        verbose_name="invoice",
                    ),
                ),
                (
                    "month",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="invoices",
                        to="billing.droppedmonth",
                        verbose_name="dropped month",
                    ),
                ),
            ],
            options={
                "verbose_name": "dropped part of an invoice",
                "verbose_name_plural": "dropped parts of invoices",
                "constraints": [
                    models.UniqueConstraint(fields=("invoice", "month"), name="one_dropped_part_per_invoice")
                ],
            },
        ),
        migrations.RunPython(migrations.RunPython.noop, refuse_to_forget),
    ]
