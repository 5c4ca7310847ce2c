"""Attempts by quarter of an hour, and the files compared with them. Days that are summed already are summed again."""

import django.db.models.deletion
from django.db import migrations, models

SUM_AGAIN = "INSERT INTO billing_rollupdue (api_key_id, day) SELECT DISTINCT api_key_id, day FROM billing_usagerollup"


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0009_exports_and_views'),
    ]

    operations = [
        migrations.CreateModel(
            name='ReconciliationMapping',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('provider', models.CharField(max_length=100, unique=True, verbose_name='provider')),
                ('mapping', models.JSONField(verbose_name='mapping')),
                ('changed_at', models.DateTimeField(verbose_name='changed')),
            ],
            options={
                'verbose_name': 'file mapping',
                'verbose_name_plural': 'file mappings',
                'ordering': ['provider'],
            },
        ),
        migrations.AddField(
            model_name='attempt',
            name='cache_read',
            field=models.BigIntegerField(null=True, verbose_name='cache read'),
        ),
        migrations.AddField(
            model_name='attempt',
            name='cache_write',
            field=models.BigIntegerField(null=True, verbose_name='cache write'),
        ),
        migrations.AddField(
            model_name='attempt',
            name='cache_write_1h',
            field=models.BigIntegerField(null=True, verbose_name='cache write, 1 h'),
        ),
        migrations.AddField(
            model_name='attempt',
            name='input',
            field=models.BigIntegerField(null=True, verbose_name='input'),
        ),
        migrations.AddField(
            model_name='attempt',
            name='output',
            field=models.BigIntegerField(null=True, verbose_name='output'),
        ),
        migrations.CreateModel(
            name='ProviderTest',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('provider', models.CharField(max_length=100, verbose_name='provider')),
                ('upstream_model', models.CharField(max_length=200, verbose_name='upstream model')),
                ('wire_format', models.CharField(max_length=20, verbose_name='wire format')),
                ('tested_by', models.CharField(blank=True, max_length=150, verbose_name='by')),
                ('started_at', models.DateTimeField(verbose_name='started')),
                ('ended_at', models.DateTimeField(verbose_name='ended')),
                ('input', models.BigIntegerField(null=True, verbose_name='input')),
                ('cache_read', models.BigIntegerField(null=True, verbose_name='cache read')),
                ('cache_write', models.BigIntegerField(null=True, verbose_name='cache write')),
                ('cache_write_1h', models.BigIntegerField(null=True, verbose_name='cache write, 1 h')),
                ('output', models.BigIntegerField(null=True, verbose_name='output')),
            ],
            options={
                'verbose_name': 'provider test',
                'verbose_name_plural': 'provider tests',
                'indexes': [models.Index(fields=['provider', 'ended_at'], name='test_by_provider')],
            },
        ),
        migrations.CreateModel(
            name='Reconciliation',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('provider', models.CharField(max_length=100, verbose_name='provider')),
                ('file_name', models.CharField(max_length=200, verbose_name='file')),
                ('sha256', models.CharField(max_length=64, unique=True, verbose_name='SHA-256')),
                ('content', models.BinaryField()),
                ('mapping', models.JSONField(null=True, verbose_name='mapping')),
                ('first_day', models.DateField(null=True, verbose_name='first day')),
                ('last_day', models.DateField(null=True, verbose_name='last day')),
                ('uploaded_by', models.CharField(max_length=150, verbose_name='uploaded by')),
                ('uploaded_at', models.DateTimeField(verbose_name='uploaded')),
                ('compared_at', models.DateTimeField(null=True, verbose_name='compared')),
                ('totals', models.JSONField(null=True, verbose_name='totals')),
            ],
            options={
                'verbose_name': 'reconciliation',
                'verbose_name_plural': 'reconciliations',
                'indexes': [models.Index(fields=['-uploaded_at'], name='reconciliation_newest')],
            },
        ),
        migrations.CreateModel(
            name='AttemptQuarter',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('day', models.DateField(verbose_name='day')),
                ('provider', models.CharField(max_length=100, verbose_name='provider')),
                ('upstream_model', models.CharField(max_length=200, verbose_name='upstream model')),
                ('started_quarter', models.DateTimeField(verbose_name='started in')),
                ('ended_quarter', models.DateTimeField(verbose_name='ended in')),
                ('use', models.CharField(choices=[('billed', 'billed'), ('estimated', 'estimated'), ('failed', 'failed')], max_length=10, verbose_name='use')),
                ('currency', models.CharField(max_length=3, verbose_name='currency')),
                ('attempts', models.BigIntegerField(verbose_name='attempts')),
                ('silent', models.BigIntegerField(verbose_name='silent')),
                ('unpriced', models.BigIntegerField(verbose_name='unpriced')),
                ('input', models.BigIntegerField(verbose_name='input')),
                ('cache_read', models.BigIntegerField(verbose_name='cache read')),
                ('cache_write', models.BigIntegerField(verbose_name='cache write')),
                ('cache_write_1h', models.BigIntegerField(verbose_name='cache write, 1 h')),
                ('output', models.BigIntegerField(verbose_name='output')),
                ('input_nanos', models.BigIntegerField()),
                ('cache_read_nanos', models.BigIntegerField()),
                ('cache_write_nanos', models.BigIntegerField()),
                ('cache_write_1h_nanos', models.BigIntegerField()),
                ('output_nanos', models.BigIntegerField()),
                ('billed_nanos', models.BigIntegerField(verbose_name='billed')),
                ('api_key', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.apikey', verbose_name='API key')),
            ],
            options={
                'verbose_name': 'attempts by quarter of an hour',
                'verbose_name_plural': 'attempts by quarter of an hour',
                'indexes': [models.Index(fields=['api_key', 'day'], name='quarter_by_key_and_day'), models.Index(fields=['provider', 'ended_quarter'], name='quarter_by_provider')],
            },
        ),
        migrations.CreateModel(
            name='ReconciliationRow',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('day', models.DateField(verbose_name='day')),
                ('model', models.CharField(max_length=200, verbose_name='model')),
                ('state', models.CharField(choices=[('matched', 'matched'), ('differs', 'differs'), ('only_theirs', 'only theirs'), ('only_ours', 'only ours')], max_length=12, verbose_name='state')),
                ('attempts', models.BigIntegerField(verbose_name='attempts')),
                ('silent', models.BigIntegerField(verbose_name='silent')),
                ('unpriced', models.BigIntegerField(verbose_name='unpriced')),
                ('requests', models.BigIntegerField(null=True, verbose_name='their requests')),
                ('lines', models.PositiveIntegerField(default=0, verbose_name='lines')),
                ('theirs', models.JSONField(null=True, verbose_name='theirs')),
                ('ours', models.JSONField(verbose_name='ours')),
                ('kinds', models.JSONField(verbose_name='difference by kind')),
                ('unexplained', models.BigIntegerField(verbose_name='unexplained')),
                ('cost_nanos', models.BigIntegerField(null=True, verbose_name='their cost')),
                ('billed', models.JSONField(verbose_name='billed')),
                ('margin_nanos', models.BigIntegerField(null=True, verbose_name='margin')),
                ('price_nanos', models.BigIntegerField(null=True, verbose_name='price')),
                ('reconciliation', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='rows', to='billing.reconciliation', verbose_name='reconciliation')),
            ],
            options={
                'verbose_name': 'reconciled day',
                'verbose_name_plural': 'reconciled days',
                'ordering': ['day', 'model'],
                'constraints': [models.UniqueConstraint(fields=('reconciliation', 'day', 'model'), name='one_row_per_reconciled_day_and_model')],
            },
        ),
        migrations.RunSQL(SUM_AGAIN, migrations.RunSQL.noop),
    ]
