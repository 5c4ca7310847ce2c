"""The audit log, which begins with what Django's own log of the admin holds so far."""

import django.core.serializers.json
import django.db.models.deletion
import django.utils.timezone
from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

BATCH = 500


def take_over_admin_log(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Copy the entries of Django's log, the oldest first: ids tell the order."""
    using = schema_editor.connection.alias
    audit_entry, log_entry = apps.get_model("billing", "AuditEntry"), apps.get_model("admin", "LogEntry")
    kept = log_entry.objects.using(using).exclude(content_type=None).select_related("user", "content_type")
    entries = [
        audit_entry(
            at=entry.action_time,
            who=entry.user.username,
            user_id=entry.user_id,
            table=f"{entry.content_type.app_label}.{entry.content_type.model}",
            object_id=entry.object_id or "",
            object_name=entry.object_repr,
            action="done",
            message=entry.change_message,
        )
        for entry in kept.order_by("action_time", "id")
    ]
    audit_entry.objects.using(using).bulk_create(entries, batch_size=BATCH)


class Migration(migrations.Migration):
    dependencies = [
        ("admin", "0003_logentry_add_action_flag_choices"),
        ("billing", "0011_key_secrets"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="when")),
                ("who", models.CharField(max_length=150, verbose_name="who")),
                ("table", models.CharField(max_length=100, verbose_name="kind of object")),
                ("object_id", models.CharField(max_length=100, verbose_name="object id")),
                ("object_name", models.CharField(max_length=300, verbose_name="object")),
                (
                    "action",
                    models.CharField(
                        choices=[("made", "made"), ("changed", "changed"), ("done", "done")],
                        max_length=8,
                        verbose_name="action",
                    ),
                ),
                (
                    "changes",
                    models.JSONField(
                        default=dict,
                        encoder=django.core.serializers.json.DjangoJSONEncoder,
                        verbose_name="before → after",
                    ),
                ),
                ("message", models.TextField(blank=True, verbose_name="message")),
                (
                    "user",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "audit log entry",
                "verbose_name_plural": "audit log",
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["table", "object_id", "-id"], name="audit_by_object"),
                    models.Index(fields=["table", "-id"], name="audit_by_table"),
                    models.Index(fields=["who", "-id"], name="audit_by_who"),
                    models.Index(fields=["object_name", "-id"], name="audit_by_name"),
                    models.Index(fields=["at"], name="audit_by_time"),
                ],
            },
        ),
        migrations.RunPython(take_over_admin_log, migrations.RunPython.noop),
    ]
