"""Records that another store has not got yet (billing/clickhouse.py)."""

import django.db.models.functions.datetime
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0018_lighter_records'),
    ]

    operations = [
        migrations.CreateModel(
            name='RecordToShip',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('record_id', models.UUIDField(verbose_name='request')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now, verbose_name='since')),
            ],
            options={
                'verbose_name': 'request to ship',
                'verbose_name_plural': 'requests to ship',
            },
        ),
    ]
