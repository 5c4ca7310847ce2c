"""Sums with the indexes alone that somebody reads by, and without a check of accounts and keys that records have had."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0016_draft_exports")]

    operations = [
        migrations.RemoveConstraint(model_name="usagerollup", name="one_rollup_per_hour_and_dimensions"),
        migrations.RemoveIndex(model_name="usagerollup", name="billing_usa_day_e64fbc_idx"),
        migrations.RemoveIndex(model_name="usagerollup", name="billing_usa_api_key_439068_idx"),
        migrations.RemoveIndex(model_name="attemptquarter", name="quarter_by_key_and_day"),
        migrations.RemoveIndex(model_name="rollupdue", name="billing_rol_api_key_3fc4c4_idx"),
        migrations.AlterField(
            model_name="usagerollup",
            name="account",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=models.PROTECT,
                related_name="+",
                to="billing.account",
                verbose_name="account",
            ),
        ),
        migrations.AlterField(
            model_name="usagerollup",
            name="api_key",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=models.PROTECT,
                related_name="+",
                to="billing.apikey",
                verbose_name="API key",
            ),
        ),
        migrations.AlterField(
            model_name="usageday",
            name="account",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=models.PROTECT,
                related_name="+",
                to="billing.account",
                verbose_name="account",
            ),
        ),
        migrations.AlterField(
            model_name="usageday",
            name="api_key",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=models.PROTECT,
                related_name="+",
                to="billing.apikey",
                verbose_name="API key",
            ),
        ),
        migrations.AlterField(
            model_name="flagrollup",
            name="api_key",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=models.PROTECT,
                related_name="+",
                to="billing.apikey",
                verbose_name="API key",
            ),
        ),
        migrations.AlterField(
            model_name="attemptquarter",
            name="api_key",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=models.PROTECT,
                related_name="+",
                to="billing.apikey",
                verbose_name="API key",
            ),
        ),
        migrations.AlterField(
            model_name="rollupdue",
            name="api_key",
            field=models.ForeignKey(db_index=False, on_delete=models.PROTECT, related_name="+", to="billing.apikey"),
        ),
        migrations.AddIndex(
            model_name="usagerollup", index=models.Index(fields=["day", "api_key"], name="usage_hours_by_day")
        ),
        migrations.AddIndex(
            model_name="attemptquarter", index=models.Index(fields=["day", "api_key"], name="quarter_by_day_and_key")
        ),
        migrations.AddIndex(model_name="rollupdue", index=models.Index(fields=["day", "api_key"], name="due_by_day")),
    ]
