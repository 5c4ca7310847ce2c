"""What is known of a key's secret before its rotation: its beginning, and when it was last used."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0010_reconciliation")]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="previous_shown",
            field=models.CharField(
                blank=True, db_default="", default="", editable=False, max_length=24, verbose_name="old secret begins"
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="previous_used_at",
            field=models.DateTimeField(blank=True, editable=False, null=True, verbose_name="old secret last used"),
        ),
    ]
