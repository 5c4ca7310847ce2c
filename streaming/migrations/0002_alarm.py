"""Alarms: what wants an operator, and what of it the webhook was told."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("streaming", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Alarm",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                (
                    "kind",
                    models.CharField(
                        choices=[("meter", "meter"), ("route", "route out"), ("budget", "budget")],
                        max_length=8,
                        verbose_name="kind",
                    ),
                ),
                ("subject", models.CharField(max_length=300, verbose_name="subject")),
                ("message", models.TextField(verbose_name="message")),
                ("details", models.JSONField(default=dict, verbose_name="details")),
                ("raised_at", models.DateTimeField(verbose_name="raised")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                ("told_at", models.DateTimeField(blank=True, null=True, verbose_name="told")),
                ("end_told_at", models.DateTimeField(blank=True, null=True, verbose_name="end told")),
                ("tries", models.PositiveIntegerField(default=0, verbose_name="failed tries")),
                ("next_try_at", models.DateTimeField(blank=True, null=True, verbose_name="next try")),
            ],
            options={
                "verbose_name": "alarm",
                "verbose_name_plural": "alarms",
                "indexes": [
                    models.Index(fields=["name"], name="alarm_by_name"),
                    models.Index(fields=["ended_at"], name="alarm_by_end"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)), fields=("name",), name="alarm_stands_once"
                    )
                ],
            },
        ),
    ]
