"""The two groups: Operators run the gateway, Finance bills. Users are put into them by hand."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

SEEN = (
    "billing.account", "billing.adjustment", "billing.apikey", "billing.attempt", "billing.budgetmonth", "billing.gatewayprocess", "billing.invoice",
    "billing.invoiceline", "billing.openstream", "billing.price", "billing.rollupdue", "billing.storedobject", "billing.usagerecord",
    "billing.usagerollup", "streaming.model", "streaming.provider", "streaming.route",
)
RIGHTS = {
    "Operators": {
        "view": SEEN,
        "add": ("billing.account", "billing.apikey", "billing.price", "streaming.model", "streaming.provider", "streaming.route"),
        "change": (
            "billing.account", "billing.apikey", "billing.openstream", "streaming.model", "streaming.provider", "streaming.route",
        ),
    },
    "Finance": {
        "view": SEEN,
        "add": ("billing.price",),
        "change": ("billing.account", "billing.invoice"),
    },
}


def make_groups(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the groups with their permissions, which Django itself would make only after all migrations."""
    alias = schema_editor.connection.alias
    for label in ("billing", "streaming"):
        config = apps.get_app_config(label)
        config.models_module = True  # a migration's stub of an app lacks what create_permissions looks at first
        create_permissions(config, verbosity=0, using=alias, apps=apps)
    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    for name, rights in RIGHTS.items():
        group, _ = group_model.objects.using(alias).get_or_create(name=name)
        for action, labels in rights.items():
            for label in labels:
                app, model = label.split(".")
                group.permissions.add(
                    permission_model.objects.using(alias).get(
                        content_type__app_label=app, content_type__model=model, codename=f"{action}_{model}"
                    )
                )


def remove_groups(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Take the groups away again; their users stay."""
    apps.get_model("auth", "Group").objects.using(schema_editor.connection.alias).filter(name__in=RIGHTS).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("billing", "0001_initial"),
        ("streaming", "0001_initial"),
    ]

    operations = [migrations.RunPython(make_groups, remove_groups)]
