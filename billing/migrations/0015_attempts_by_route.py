"""An index for how a route fared lately."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0014_invoice_runs")]

    operations = [
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(fields=["provider", "upstream_model", "id"], name="attempt_by_route"),
        )
    ]
