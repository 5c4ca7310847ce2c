"""Month runs: both groups see them, and the documents of invoices. To run one is to change invoices: Finance's."""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

SEEN = ("view_invoicerun", "view_invoicedocument")
RIGHTS = {"Operators": SEEN, "Finance": SEEN}


def grant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the permissions, which Django itself would make only after all migrations, and give them to the groups."""
    alias = schema_editor.connection.alias
    config = apps.get_app_config("billing")
    config.models_module = True  # a migration's stub of an app lacks what create_permissions looks at first
    create_permissions(config, verbosity=0, using=alias, apps=apps)
    permissions = apps.get_model("auth", "Permission").objects.using(alias)
    for name, rights in RIGHTS.items():
        group, _ = apps.get_model("auth", "Group").objects.using(alias).get_or_create(name=name)
        for right in rights:
            group.permissions.add(permissions.get(content_type__app_label="billing", codename=right))


def take_back(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The groups stay; these permissions are taken from them."""
    alias = schema_editor.connection.alias
    for name, rights in RIGHTS.items():
        for group in apps.get_model("auth", "Group").objects.using(alias).filter(name=name):
            group.permissions.remove(*group.permissions.filter(content_type__app_label="billing", codename__in=rights))


class Migration(migrations.Migration):
    dependencies = [("hopbase_site", "0007_correction_rights"), ("billing", "0014_invoice_runs")]

    operations = [migrations.RunPython(grant, take_back)]
