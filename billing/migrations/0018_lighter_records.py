"""Requests with fewer indexes: none that another begins with, and none of a column by which nobody asks alone."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0017_lighter_rollups")]

    operations = [
        migrations.RemoveConstraint(model_name="usagerecord", name="record_name_once_per_key"),
        migrations.RemoveIndex(model_name="usagerecord", name="record_by_name"),
        migrations.AlterField(
            model_name="usagerecord",
            name="api_key",
            field=models.ForeignKey(
                db_index=False,
                on_delete=models.PROTECT,
                related_name="records",
                to="billing.apikey",
                verbose_name="API key",
            ),
        ),
        migrations.AlterField(
            model_name="usagerecord",
            name="invoice",
            field=models.ForeignKey(
                blank=True,
                null=True,
                db_index=False,
                on_delete=models.PROTECT,
                related_name="records",
                to="billing.invoice",
                verbose_name="invoice",
            ),
        ),
        migrations.AlterField(
            model_name="attempt",
            name="record",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=models.PROTECT,
                related_name="attempts",
                to="billing.usagerecord",
                verbose_name="request",
            ),
        ),
        migrations.AlterField(
            model_name="openstream",
            name="account",
            field=models.ForeignKey(
                db_index=False, on_delete=models.PROTECT, related_name="+", to="billing.account", verbose_name="account"
            ),
        ),
        migrations.AlterField(
            model_name="openstream",
            name="api_key",
            field=models.ForeignKey(
                db_index=False, on_delete=models.PROTECT, related_name="+", to="billing.apikey", verbose_name="API key"
            ),
        ),
        migrations.AddConstraint(
            model_name="usagerecord",
            constraint=models.UniqueConstraint(fields=("request_name", "api_key"), name="record_name_once_per_key"),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(fields=["invoice"], name="record_by_invoice", condition=models.Q(invoice__isnull=False)),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(
                fields=["day", "api_key"],
                name="record_unusual",
                condition=~models.Q(flags=[]) | ~models.Q(items=[]) | models.Q(metering="none"),
            ),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(fields=["record"], name="attempt_second", condition=models.Q(number=2)),
        ),
    ]
