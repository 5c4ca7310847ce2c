"""What tells of the meter's health: both groups see it, operators acknowledge what they have dealt with."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

SEEN = (("billing", "meterevent"), ("billing", "flagrollup"), ("streaming", "alarm"))
RIGHTS = {
    "Operators": [*(("view", *model) for model in SEEN), ("change", "billing", "meterevent")],
    "Finance": [("view", *model) for model in SEEN],
}


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the permissions, which Django itself would make only after all migrations, and give them to the groups."""
    alias = schema_editor.connection.alias
    for label in ("billing", "streaming"):
        config = apps.get_app_config(label)
        config.models_module = True  # a migration's stub of an app lacks what create_permissions looks at first
        create_permissions(config, verbosity=0, using=alias, apps=apps)
    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    for name, rights in RIGHTS.items():
        group, _ = group_model.objects.using(alias).get_or_create(name=name)
        for action, app, model in rights:
            permission = permission_model.objects.using(alias).get(
                content_type__app_label=app, content_type__model=model, codename=f"{action}_{model}"
            )
            group.permissions.add(permission)


def take_back(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The groups stay; these permissions are taken from them."""
    alias = schema_editor.connection.alias
    for name, rights in RIGHTS.items():
        for group in apps.get_model("auth", "Group").objects.using(alias).filter(name=name):
            for action, app, model in rights:
                group.permissions.remove(
                    *group.permissions.filter(content_type__app_label=app, codename=f"{action}_{model}")
                )


class Migration(migrations.Migration):
    dependencies = [
        ("hopbase_site", "0001_groups"),
        ("billing", "0005_meter_health"),
        ("streaming", "0002_alarm"),
    ]

    operations = [migrations.RunPython(grant, take_back)]
