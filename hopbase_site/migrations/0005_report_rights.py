"""Reports: both groups see daily sums, keep views of their own, and see the files that they asked for."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

GROUPS = ("Operators", "Finance")
RIGHTS = ("view_usageday", "view_savedview", "add_savedview", "change_savedview", "view_export")


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the permissions, which Django itself would make only after all migrations, and give them to the groups."""
    alias = schema_editor.connection.alias
    config = apps.get_app_config("billing")
    config.models_module = True  # a migration's stub of an app lacks what create_permissions looks at first
    create_permissions(config, verbosity=0, using=alias, apps=apps)
    permissions = apps.get_model("auth", "Permission").objects.using(alias)
    for name in GROUPS:
        group, _ = apps.get_model("auth", "Group").objects.using(alias).get_or_create(name=name)
        for right in RIGHTS:
            group.permissions.add(permissions.get(content_type__app_label="billing", codename=right))


def take_back(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The groups stay; these permissions are taken from them."""
    alias = schema_editor.connection.alias
    for group in apps.get_model("auth", "Group").objects.using(alias).filter(name__in=GROUPS):
        group.permissions.remove(*group.permissions.filter(content_type__app_label="billing", codename__in=RIGHTS))


class Migration(migrations.Migration):
    dependencies = [("hopbase_site", "0004_count_factor_rights"), ("billing", "0009_exports_and_views")]

    operations = [migrations.RunPython(grant, take_back)]
