"""A request under way locks its account's time zone and currency: the triggers are put on anew (billing/immutability.py).

Back, those of the version before are put on by that version's own code.
"""

import django.db.models.deletion
from django.db import migrations, models

from billing import immutability


def install(apps, schema_editor):
    immutability.install(schema_editor.connection)


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0020_dropped_months"),
    ]

    operations = [
        migrations.AlterField(
            model_name="openstream",
            name="account",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="open_streams",
                to="billing.account",
                verbose_name="account",
            ),
        ),
        migrations.RunPython(install, migrations.RunPython.noop),
    ]
