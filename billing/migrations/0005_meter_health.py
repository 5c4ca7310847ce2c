"""What tells of the meter's health: events, flags by day, how long a roll-up has been due, since when records are unpriced."""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("billing", "0004_count_factors")]

    operations = [
        migrations.CreateModel(
            name="MeterEvent",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("swept", "swept after its death"),
                            ("late", "written late"),
                            ("dropped", "refused by the database"),
                            ("unjournalled", "not taken by the disk"),
                        ],
                        max_length=12,
                        verbose_name="kind",
                    ),
                ),
                ("process", models.UUIDField(verbose_name="process")),
                ("hour", models.DateTimeField(verbose_name="hour")),
                ("count", models.BigIntegerField(default=0, verbose_name="count")),
                ("detail", models.CharField(blank=True, max_length=300, verbose_name="the last one")),
                ("first_at", models.DateTimeField(verbose_name="first")),
                ("last_at", models.DateTimeField(verbose_name="last")),
                ("acknowledged_at", models.DateTimeField(blank=True, null=True, verbose_name="acknowledged")),
                ("acknowledged_by", models.CharField(blank=True, max_length=150, verbose_name="acknowledged by")),
            ],
            options={"verbose_name": "meter event", "verbose_name_plural": "meter events"},
        ),
        migrations.AddIndex(
            model_name="meterevent", index=models.Index(fields=["kind", "last_at"], name="event_by_kind")
        ),
        migrations.AddConstraint(
            model_name="meterevent",
            constraint=models.UniqueConstraint(
                fields=("kind", "process", "hour"), name="one_event_per_process_and_hour"
            ),
        ),
        migrations.CreateModel(
            name="FlagRollup",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("day", models.DateField(verbose_name="day")),
                ("provider", models.CharField(blank=True, max_length=100, verbose_name="provider")),
                ("model", models.CharField(max_length=200, verbose_name="model")),
                ("flag", models.CharField(max_length=200, verbose_name="flag")),
                ("records", models.BigIntegerField(verbose_name="requests")),
                ("first_at", models.DateTimeField(verbose_name="first")),
                ("last_at", models.DateTimeField(verbose_name="last")),
                (
                    "api_key",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="billing.apikey",
                        verbose_name="API key",
                    ),
                ),
            ],
            options={"verbose_name": "flagged usage", "verbose_name_plural": "flagged usage"},
        ),
        migrations.AddIndex(
            model_name="flagrollup", index=models.Index(fields=["day"], name="flag_rollup_by_day")
        ),
        migrations.AddConstraint(
            model_name="flagrollup",
            constraint=models.UniqueConstraint(
                fields=("api_key", "day", "provider", "model", "flag"), name="one_flag_rollup_per_day_and_dimensions"
            ),
        ),
        migrations.AddField(
            model_name="rollupdue",
            name="created_at",
            field=models.DateTimeField(default=django.utils.timezone.now, db_default=Now()),
        ),
        migrations.AddIndex(
            model_name="budgetmonth", index=models.Index(fields=["month"], name="spending_by_month")
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(
                condition=models.Q(("unpriced", True)), fields=["ended_at"], name="record_unpriced_since"
            ),
        ),
    ]
