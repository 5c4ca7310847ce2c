"""Makes issued invoices immutable in the database itself (billing/immutability.py says what is guarded)."""

from django.db import migrations

from billing import immutability


def install(apps, schema_editor):
    immutability.install(schema_editor.connection)


def remove(apps, schema_editor):
    immutability.remove(schema_editor.connection)


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [migrations.RunPython(install, remove)]
