"""Count factors are for both groups to see; the program alone writes them."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

GROUPS = ("Operators", "Finance")
RIGHT = {"content_type__app_label": "billing", "content_type__model": "countfactor", "codename": "view_countfactor"}


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the permission, which Django itself would make only after all migrations, and give it to the groups."""
    alias = schema_editor.connection.alias
    config = apps.get_app_config("billing")
    config.models_module = True  # a migration's stub of an app lacks what create_permissions looks at first
    create_permissions(config, verbosity=0, using=alias, apps=apps)
    permission = apps.get_model("auth", "Permission").objects.using(alias).get(**RIGHT)
    for name in GROUPS:
        group, _ = apps.get_model("auth", "Group").objects.using(alias).get_or_create(name=name)
        group.permissions.add(permission)


def take_back(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The groups stay; this permission is taken from them."""
    alias = schema_editor.connection.alias
    for group in apps.get_model("auth", "Group").objects.using(alias).filter(name__in=GROUPS):
        group.permissions.remove(*group.permissions.filter(**RIGHT))


class Migration(migrations.Migration):
    dependencies = [("hopbase_site", "0003_audit_log_rights"), ("billing", "0004_count_factors")]

    operations = [migrations.RunPython(grant, take_back)]
