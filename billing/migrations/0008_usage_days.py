"""Daily sums beside the hourly ones. Those that are there are summed up here; due days are made anew anyway."""

import django.db.models.deletion
from django.db import migrations, models

SUM_UP = """
    INSERT INTO billing_usageday (
        account_id, api_key_id, day, model, provider, currency, requests, interrupted, estimated, unpriced,
        input, cache_read, cache_write, cache_write_1h, output, reasoning, cost_nanos
    )
    SELECT account_id, api_key_id, day, model, provider, MIN(currency), SUM(requests), SUM(interrupted),
        SUM(CASE WHEN metering IN ('estimated', 'checkpoint') THEN requests ELSE 0 END), SUM(unpriced),
        SUM(input), SUM(cache_read), SUM(cache_write), SUM(cache_write_1h), SUM(output), SUM(reasoning), SUM(cost_nanos)
    FROM billing_usagerollup GROUP BY account_id, api_key_id, day, model, provider
"""


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0007_credit_notes'),
    ]

    operations = [
        migrations.CreateModel(
            name='UsageDay',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('day', models.DateField(verbose_name='day')),
                ('model', models.CharField(max_length=200, verbose_name='model')),
                ('provider', models.CharField(blank=True, max_length=100, verbose_name='provider')),
                ('currency', models.CharField(max_length=3, verbose_name='currency')),
                ('requests', models.BigIntegerField(verbose_name='requests')),
                ('interrupted', models.BigIntegerField(verbose_name='interrupted')),
                ('estimated', models.BigIntegerField(verbose_name='estimated')),
                ('unpriced', models.BigIntegerField(verbose_name='unpriced')),
                ('input', models.BigIntegerField(verbose_name='input')),
                ('cache_read', models.BigIntegerField(verbose_name='cache read')),
                ('cache_write', models.BigIntegerField(verbose_name='cache write')),
                ('cache_write_1h', models.BigIntegerField(verbose_name='cache write, 1 h')),
                ('output', models.BigIntegerField(verbose_name='output')),
                ('reasoning', models.BigIntegerField(verbose_name='reasoning')),
                ('cost_nanos', models.BigIntegerField(verbose_name='cost')),
                ('account', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.account', verbose_name='account')),
                ('api_key', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.apikey', verbose_name='API key')),
            ],
            options={
                'verbose_name': 'daily roll-up',
                'verbose_name_plural': 'daily roll-ups',
                'indexes': [models.Index(fields=['day'], name='usage_day_by_day')],
                'constraints': [models.UniqueConstraint(fields=('api_key', 'day', 'model', 'provider'), name='one_usage_day_per_dimensions')],
            },
        ),
        migrations.RunSQL(SUM_UP, migrations.RunSQL.noop),
    ]
